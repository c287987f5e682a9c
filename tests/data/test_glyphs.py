"""glyphs: the same bytes for the same seed, quick, and cached safely."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from derts.data import glyph_data, glyphs
from derts.errors import DertsError


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
    assert train.image_shape == (28, 28, 1)
    assert abs(len(train.class_names) / len(names) - 0.64) < 0.01
    assert train.categories is not None
    assert {"Latin", "Greek", "Cyrillic", "Armenian", "Georgian"} <= set(train.categories)
    brightest = train.images.flatten(1).amax(dim=1)
    assert int(brightest.min()) > 100, "every drawing shows its glyph"
    assert 10 < train.images.float().mean() < 80, "white on black"
    [file] = tmp_path.iterdir()
    monkeypatch.setattr(glyph_data, "_make", None)
    cached = glyphs(images_per_character=2)
    assert torch.equal(cached["test"].images, tables["test"].images)
    assert cached["test"].class_names == tables["test"].class_names
    assert file.suffix == ".npz"


def test_damaged_cache_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DERTS_CACHE", str(tmp_path / "deeper" / "cache"))
    tables = glyphs(characters=10, images_per_character=20)
    [file] = (tmp_path / "deeper" / "cache").iterdir()
    whole = file.read_bytes()
    monkeypatch.setattr(glyph_data, "_make", lambda *_: tables)  # drawing takes seconds
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 0xFF
    for damaged in (whole[: len(whole) // 2], b"", bytes(flipped)):
        file.write_bytes(damaged)
        assert glyphs(characters=10, images_per_character=20) is tables
        assert file.read_bytes() == whole


def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DERTS_CACHE", str(tmp_path / "file"))
    assert len(glyphs(characters=5, images_per_character=1)["train"]) == 3


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DERTS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", os.path.join("some", "where"))
    assert glyph_data._cache_folder() == Path("some", "where", "derts")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert glyph_data._cache_folder().name == "derts"


def test_bad_arguments() -> None:
    with pytest.raises(DertsError, match="give fewer"):
        glyphs(characters=5000, cache=False)
    with pytest.raises(DertsError, match="at least 3"):
        glyphs(characters=2)
    with pytest.raises(DertsError, match="1 or more"):
        glyphs(images_per_character=0)
