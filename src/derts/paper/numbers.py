"""The paper's own numbers and lists, as data."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def paper() -> dict[str, Any]:
    """Tables, set-up and class lists of Zhan & Anderson (2024)."""
    return _read("paper.json")


@cache
def class_words() -> dict[str, str]:
    """The 64 training classes of mini-ImageNet, known by their WordNet numbers, in words.

    >>> class_words()["n02108089"]
    'boxer'
    """
    return _read("class_names.json")


def _read(name: str) -> dict[str, Any]:
    text = resources.files("derts.paper").joinpath(name).read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def class_list(budget: int) -> tuple[str, ...]:
    """The paper's 16 or 32 mini-ImageNet training classes.

    >>> len(class_list(16)), class_list(16)[0]
    (16, 'n02823428')
    """
    return tuple(paper()["class_lists"][str(budget)])
