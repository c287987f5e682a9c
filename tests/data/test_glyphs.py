"""glyphs: the same bytes for the same seed, quick, and cached safely."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from derts.data import glyphs
from derts.errors import DertsError

MODULE = sys.modules["derts.data.glyphs"]


@pytest.mark.slow
def test_same_seed_same_bytes() -> None:
    first, again = (glyphs(characters=30, images_per_character=5, cache=False) for _ in range(2))
    other = glyphs(characters=30, images_per_character=5, seed=1, cache=False)
    for split in ("train", "val", "test"):
        assert torch.equal(first[split].images, again[split].images)
        assert first[split].class_names == again[split].class_names
    assert first["train"].class_names != other["train"].class_names


def test_whole_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DERTS_CACHE", str(tmp_path))
    tables = glyphs(images_per_character=2)
    names = [name for table in tables.values() for name in table.class_names]
    assert 900 < len(names) < 1375
    assert len(set(names)) == len(names)
    assert "U+0041 A" in names
    assert not {"U+0391 Α", "U+0410 А"} & set(names), "Greek and Cyrillic A look like the Latin one"
    train = tables["train"]
    assert train.item_shape == (28, 28, 1)
    assert abs(len(train.class_names) / len(names) - 0.64) < 0.01
    assert train.categories is not None
    assert {"Latin", "Greek", "Cyrillic", "Armenian", "Georgian"} <= set(train.categories)
    brightest = train.images.flatten(1).amax(dim=1)
    assert int(brightest.min()) > 100, "every drawing shows its glyph"
    assert 10 < train.images.float().mean() < 80, "white on black"
    monkeypatch.setattr(MODULE, "_make", None)
    cached = glyphs(images_per_character=2)
    assert torch.equal(cached["test"].images, tables["test"].images)
    assert cached["test"].class_names == tables["test"].class_names
    assert [path.name for path in tmp_path.iterdir()] == ["glyphs-v1-allx2-seed0"]


def test_damaged_cache_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DERTS_CACHE", str(tmp_path / "deeper" / "cache"))
    glyphs(characters=10, images_per_character=20)
    [file] = (tmp_path / "deeper" / "cache").glob("*/train.npy")
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 0xFF
    for damaged in (whole[: len(whole) // 2], b"", bytes(flipped)):
        file.write_bytes(damaged)
        glyphs(characters=10, images_per_character=20)
        assert file.read_bytes() == whole


def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DERTS_CACHE", str(tmp_path / "file"))
    assert len(glyphs(characters=5, images_per_character=1)["train"]) == 3


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DERTS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))
    glyphs(characters=3, images_per_character=1)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    glyphs(characters=3, images_per_character=1)
    for folder in ("there", ".cache"):
        assert (tmp_path / folder / "derts" / "glyphs-v1-3x1-seed0" / "store.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"characters": 5000, "cache": False}, "give fewer"),
        ({"characters": 2}, "at least 3"),
        ({"images_per_character": 0}, "1 or more"),
    ],
)
def test_bad_arguments(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(DertsError, match=message):
        glyphs(**arguments)  # type: ignore[arg-type]
