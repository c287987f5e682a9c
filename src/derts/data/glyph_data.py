"""glyphs, the built-in data: letters and digits in twelve fonts, made in seconds, then cached."""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch

from derts.data.folders import split_by_class
from derts.data.glyph_drawing import distinct, draw, draw_shapes, script, shared_characters
from derts.data.source import DEFAULT_FRACTIONS
from derts.data.table import ImageTable
from derts.errors import DertsError

# Part of the cached file's name: raise it with every change of what is drawn.
_VERSION = 1


def glyphs(
    *,
    images_per_character: int = 40,
    characters: int | None = None,
    seed: int = 0,
    cache: bool = True,
) -> dict[str, ImageTable]:
    """Letters and digits of several scripts, drawn at random, as train, val and test tables.

    Images are uint8 [n, 28, 28, 1], white on black, in random fonts, sizes, places, angles and
    noise. About a thousand characters that can be told apart, or as many as `characters`
    says, spread over the scripts; each is in one split (64, 16 and 20 per cent). The same
    arguments give the same bytes. Kept in the folder that DERTS_CACHE names, else in the
    user's cache folder.

    >>> tables = glyphs(characters=10, images_per_character=3, cache=False)
    >>> tables["train"]
    ImageTable(train: 18 images 28×28×1, 6 classes, cpu)
    >>> tables["test"].class_names
    (..., ...)
    """
    if images_per_character < 1:
        raise DertsError(f"images_per_character is {images_per_character}: give 1 or more")
    if characters is not None and characters < 3:
        raise DertsError(f"characters is {characters}: give at least 3, one for each split")
    if not cache:
        return _make(images_per_character, characters, seed)
    count = "all" if characters is None else str(characters)
    path = _cache_folder() / f"glyphs-v{_VERSION}-{count}x{images_per_character}-seed{seed}.npz"
    tables = _load(path)
    if tables is None:
        tables = _make(images_per_character, characters, seed)
        _save(tables, path)
    return tables


def _make(images_per_character: int, characters: int | None, seed: int) -> dict[str, ImageTable]:
    codes = shared_characters()
    shapes = draw_shapes(codes)
    kept = distinct(shapes)
    if characters is not None:
        if characters > len(kept):
            raise DertsError(f"characters is {characters}, but there are {len(kept)}: give fewer")
        kept = _spread(kept, codes, seed)[:characters]
    place_of = {_name(codes[place]): place for place in kept}
    tables = {}
    for split, names in split_by_class(list(place_of), DEFAULT_FRACTIONS, seed).items():
        places = [place_of[name] for name in names]
        seeds = [(seed, codes[place]) for place in places]
        images = draw(shapes[places], images_per_character, seeds)
        labels = torch.arange(len(names)).repeat_interleave(images_per_character)
        categories = tuple(script(codes[place]).capitalize() for place in places)
        tables[split] = ImageTable(
            torch.from_numpy(images).flatten(0, 1), labels, tuple(names), split, categories
        )
    return tables


def _name(code: int) -> str:
    return f"U+{code:04X} {chr(code)}"


def _spread(places: list[int], codes: list[int], seed: int) -> list[int]:
    """All places in a random order of which every beginning has its share of each script."""
    random = np.random.default_rng(seed)
    ranked = []
    for name in sorted({script(codes[place]) for place in places}):
        group = [place for place in places if script(codes[place]) == name]
        order = random.permutation(len(group)).tolist()
        ranked += [((rank + 0.5) / len(group), group[chosen]) for rank, chosen in enumerate(order)]
    return [place for _, place in sorted(ranked)]


def _cache_folder() -> Path:
    for variable, below in (("DERTS_CACHE", ""), ("XDG_CACHE_HOME", "derts")):
        if os.environ.get(variable):
            return Path(os.environ[variable]) / below
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "derts"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "derts"
    return Path.home() / ".cache" / "derts"


def _load(path: Path) -> dict[str, ImageTable] | None:
    """The cached tables, or None where there are none that can be read."""
    try:
        tables = {}
        with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
            for split in ("train", "val", "test"):
                images, labels, names, categories = (
                    held[f"{split}_{part}"] for part in ("images", "labels", "names", "categories")
                )
                tables[split] = ImageTable(
                    torch.from_numpy(images),
                    torch.from_numpy(labels),
                    tuple(names.tolist()),
                    split,
                    tuple(categories.tolist()),
                )
        return tables
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, DertsError):
        return None


def _save(tables: dict[str, ImageTable], path: Path) -> None:
    arrays = {}
    for split, table in tables.items():
        arrays[f"{split}_images"] = table.images.numpy()
        arrays[f"{split}_labels"] = table.labels.numpy()
        arrays[f"{split}_names"] = np.array(table.class_names)
        arrays[f"{split}_categories"] = np.array(table.categories)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            try:
                np.savez(file, **arrays)  # type: ignore[arg-type]
                file.close()
                os.replace(file.name, path)
            except BaseException:
                file.close()
                os.unlink(file.name)
                raise
    except OSError:
        return  # a cache that cannot be written costs a few seconds next time, and no more
