"""glyphs, the built-in data: letters and digits in twelve fonts, drawn in seconds, then cached."""

import math
import os
import unicodedata
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFont

from derts.data.folders import split_by_class
from derts.data.sources import DEFAULT_FRACTIONS
from derts.data.store import open_store, verify_store
from derts.data.store_writing import save_table
from derts.data.table import ImageTable
from derts.errors import DertsError

SIDE = 28
_CANVAS, _GLYPH = 48, 40  # a glyph's longer side on its canvas, in pixels
# Part of the cached store's name: raise it with every change of what is drawn.
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
    noise. About a thousand characters that can be told apart, or `characters` of them, spread
    over the scripts; each is in one split (64, 16 and 20 per cent). The same arguments give the
    same bytes. Kept as a store in the folder that DERTS_CACHE names, else in the user's cache.

    >>> glyphs(characters=10, images_per_character=3, cache=False)["train"]
    ImageTable(train: 18 images 28×28×1, 6 classes, cpu)
    """
    if images_per_character < 1:
        raise DertsError(f"images_per_character is {images_per_character}: give 1 or more")
    if characters is not None and characters < 3:
        raise DertsError(f"characters is {characters}: give at least 3, one for each split")
    if not cache:
        return _make(images_per_character, characters, seed)
    count = "all" if characters is None else str(characters)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "derts"
    cached = Path(os.environ.get("DERTS_CACHE") or home)
    path = cached / f"glyphs-v{_VERSION}-{count}x{images_per_character}-seed{seed}"
    with suppress(DertsError):
        verify_store(path)
        found = open_store(path)
        return {name: table for name, table in found.items() if isinstance(table, ImageTable)}
    tables = _make(images_per_character, characters, seed)
    # A cache that cannot be written costs a few seconds next time, and no more.
    with suppress(DertsError):
        save_table(tables, path, overwrite=True)
    return tables


def _make(images_per_character: int, characters: int | None, seed: int) -> dict[str, ImageTable]:
    # What all fonts have and in most looks like none before it; cca2df0 has what found them.
    text = Path(__file__).with_name("glyphs.txt").read_text(encoding="ascii")
    ranges = [[int(end, 16) for end in part.split("-")] for part in text.split()]
    codes = [code for ends in ranges for code in range(ends[0], ends[-1] + 1)]
    if characters is not None:
        if characters > len(codes):
            raise DertsError(f"characters is {characters}, but there are {len(codes)}: give fewer")
        codes = _spread(codes, seed)[:characters]
    code_of = {f"U+{code:04X} {chr(code)}": code for code in codes}
    tables = {}
    for split, names in split_by_class(list(code_of), DEFAULT_FRACTIONS, seed).items():
        codes = [code_of[name] for name in names]
        images = _draw(_shapes(codes), images_per_character, [(seed, code) for code in codes])
        labels = torch.arange(len(names)).repeat_interleave(images_per_character)
        categories = tuple(_script(code).capitalize() for code in codes)
        tables[split] = ImageTable(
            torch.from_numpy(images).flatten(0, 1), labels, tuple(names), split, categories
        )
    return tables


def _script(code: int) -> str:
    return unicodedata.name(chr(code)).split()[0]


def _spread(codes: list[int], seed: int) -> list[int]:
    """All codes in a random order of which every beginning has its share of each script."""
    random = np.random.default_rng(seed)
    ranked = []
    for name in sorted({_script(code) for code in codes}):
        group = [code for code in codes if _script(code) == name]
        order = random.permutation(len(group)).tolist()
        ranked += [((rank + 0.5) / len(group), group[chosen]) for rank, chosen in enumerate(order)]
    return [code for _, code in sorted(ranked)]


def _shapes(codes: list[int]) -> NDArray[np.uint8]:
    """Each character in each of matplotlib's twelve DejaVu fonts (Sans, Sans Mono, Serif), all of
    one size: uint8 [characters, fonts, canvas, canvas].
    """
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    paths = sorted(path for path in folder.glob("DejaVu*.ttf") if "Display" not in path.name)
    if len(paths) != 12:
        raise DertsError(f"{folder} has {len(paths)} of 12 DejaVu fonts: install matplotlib again")
    shapes = np.zeros((len(codes), len(paths), _CANVAS, _CANVAS), dtype=np.uint8)
    for font_number, path in enumerate(paths):
        font = ImageFont.truetype(str(path), _CANVAS, layout_engine=ImageFont.Layout.BASIC)
        for number, code in enumerate(codes):
            mask = font.getmask(chr(code), mode="L")
            image = Image.fromarray(np.array(mask, dtype=np.uint8).reshape(mask.size[::-1]))
            shape = image.crop(image.getbbox())
            scale = _GLYPH / max(shape.size)
            wide, high = (max(1, round(side * scale)) for side in shape.size)
            shape = shape.resize((wide, high), Image.Resampling.BICUBIC)
            left, top = (_CANVAS - wide) // 2, (_CANVAS - high) // 2
            shapes[number, font_number, top : top + high, left : left + wide] = np.asarray(shape)
    return shapes


def _draw(shapes: NDArray[np.uint8], count: int, seeds: list[tuple[int, int]]) -> NDArray[np.uint8]:
    """Drawings uint8 [characters, count, 28, 28, 1] of shapes, decided by a seed per character."""
    drawn = np.empty((len(shapes), count, SIDE, SIDE, 1), dtype=np.uint8)
    for number, seed in enumerate(seeds):
        random = np.random.default_rng(seed)
        chosen = shapes[number][random.integers(len(shapes[0]), size=count)]
        pixels = np.empty((count, SIDE, SIDE), dtype=np.float32)
        for place, (shape, warp) in enumerate(
            zip(chosen, _random_warps(random, count).tolist(), strict=True)
        ):
            # At twice the size, then halved: thin strokes keep their weight.
            warped = Image.fromarray(shape).transform(
                (2 * SIDE, 2 * SIDE), Image.Transform.AFFINE, warp, Image.Resampling.BILINEAR
            )
            pixels[place] = np.asarray(warped.reduce(2))
        pixels *= random.uniform(0.55, 1.0, (count, 1, 1)).astype(np.float32)
        level = random.uniform(0.02, 0.15, (count, 1, 1)).astype(np.float32)
        pixels += 255 * level * random.standard_normal(pixels.shape, dtype=np.float32)
        drawn[number, ..., 0] = pixels.clip(0, 255).round()
    return drawn


def _random_warps(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Affine maps [count, 6], as Pillow has them, from the drawing's pixels to the canvas's."""
    angle = random.uniform(-math.radians(20), math.radians(20), count)
    shear = random.uniform(-0.3, 0.3, count)
    share = random.uniform(0.55, 0.85, (count, 1))  # of the drawing that the glyph takes
    stretch = np.exp(random.uniform(-0.2, 0.2, (count, 1)) * np.array([1, -1]))
    scale = _GLYPH / (2 * SIDE) / (share * stretch)
    shift = SIDE * (1 + 0.7 * random.uniform(-1, 1, (count, 2)) * (1 - share))
    cosine, sine = np.cos(angle), np.sin(angle)
    linear = np.empty((count, 2, 2))
    linear[:, 0, 0], linear[:, 0, 1] = cosine, sine + shear * cosine
    linear[:, 1, 0], linear[:, 1, 1] = -sine, cosine - shear * sine
    linear *= scale[:, :, None]
    offset = _CANVAS / 2 - np.einsum("nij,nj->ni", linear, shift)
    return np.concatenate([linear, offset[:, :, None]], axis=2).reshape(count, 6)
