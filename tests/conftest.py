"""Shared by all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from derts.data import ImageTable, glyphs


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Tests are many small steps: more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def letters() -> dict[str, ImageTable]:
    """A few glyphs, enough to train on for a moment."""
    return glyphs(characters=60, images_per_character=12)


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
