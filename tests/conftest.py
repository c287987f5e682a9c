"""Shared by all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

from derts.data import ImageTable, glyphs
from derts.hardware import keep_freed_memory


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that two processes end at about the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Tests are many small steps: more threads only wait for each other."""
    keep_freed_memory()
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


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a person who comes with own images has: twelve folders of glyph pictures."""
    folder = tmp_path_factory.mktemp("own") / "photos"
    table = glyphs(characters=60, images_per_character=24)["train"]
    for index, label in enumerate(table.labels.tolist()):
        if label < 12:
            place = folder / f"letter-{label:02d}"
            place.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(255 - table.images[index, :, :, 0].numpy())
            picture.resize((50, 40)).save(place / f"{index % 24:02d}.png")
    return folder
