"""What the tests of the data stage share: small data sets on disk, and a cache of their own."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

MakeImages = Callable[..., Path]
Encode = Callable[..., bytes]


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("DERTS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def class_folders(tmp_path: Path) -> MakeImages:
    """Makes FOLDER/<class>/<number>.png with random pixels."""

    def make(folder: str, classes: str = "abc", count: int = 4, side: int = 12) -> Path:
        random = np.random.default_rng(0)
        for name in classes:
            (tmp_path / folder / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (side, side + 4, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / folder / name / f"{number}.png")
        return tmp_path / folder

    return make


@pytest.fixture(scope="session")
def encoded() -> Encode:
    """An image, or pixels, as the bytes of an image file."""

    def encode(image: Any, kind: str = "PNG", **options: Any) -> bytes:
        image = image if isinstance(image, Image.Image) else Image.fromarray(image)
        buffer = io.BytesIO()
        image.save(buffer, kind, **options)
        return buffer.getvalue()

    return encode


@pytest.fixture
def shared_data() -> Path:
    """The real JPEG packs, which lie beside the repository where they are at all."""
    folder = Path(__file__).parents[3] / "shared" / "data"
    if not (folder / "mini-imagenet" / "val.npz").is_file():
        pytest.skip("the real data are not in ../shared/data")
    return folder
