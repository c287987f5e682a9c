"""The paper's own numbers and lists, as data."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def paper() -> dict[str, Any]:
    """Tables, set-up and class lists of Zhan & Anderson (2024)."""
    text = resources.files("derts.reproduce").joinpath("paper.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def class_list(budget: int) -> tuple[str, ...]:
    """The paper's 16 or 32 mini-ImageNet training classes.

    >>> len(class_list(16)), class_list(16)[0]
    (16, 'n02823428')
    """
    return tuple(paper()["class_lists"][str(budget)])
