"""Drawing characters: which ones the fonts share and can be told apart, and each in many hands."""

from __future__ import annotations

import math
import unicodedata
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray
from PIL import Image, ImageFont

from derts.errors import DertsError

SIDE = 28
_CANVAS, _GLYPH = 48, 40  # a glyph's longer side on its canvas, in pixels
_CATEGORIES = frozenset({"Lu", "Ll", "Lt", "Lo", "Nd"})
# A share of the squared ink: below it, the eye takes two noisy small shapes for one.
_SAME_SHAPE = 0.04


def fonts() -> list[Path]:
    """The twelve DejaVu fonts (Sans, Sans Mono, Serif) that come with matplotlib."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    found = sorted(path for path in folder.glob("DejaVu*.ttf") if "Display" not in path.name)
    if len(found) != 12:
        raise DertsError(
            f"matplotlib's folder {folder} has {len(found)} of the 12 DejaVu fonts that glyphs are "
            "drawn with: install matplotlib again"
        )
    return found


def shared_characters() -> list[int]:
    """Code points of the letters and digits that all fonts have, in order."""
    shared = set.intersection(*(set(FT2Font(str(path)).get_charmap()) for path in fonts()))
    return [code for code in sorted(shared) if unicodedata.category(chr(code)) in _CATEGORIES]


def script(code: int) -> str:
    """The script that a character belongs to.

    >>> script(ord("A")), script(ord("Ж"))
    ('LATIN', 'CYRILLIC')
    """
    return unicodedata.name(chr(code)).split()[0]


def draw_shapes(codes: list[int]) -> NDArray[np.uint8]:
    """Each character in each font, all of one size: uint8 [characters, fonts, canvas, canvas]."""
    paths = fonts()
    shapes = np.zeros((len(codes), len(paths), _CANVAS, _CANVAS), dtype=np.uint8)
    for font_number, path in enumerate(paths):
        font = ImageFont.truetype(str(path), _CANVAS, layout_engine=ImageFont.Layout.BASIC)
        for number, code in enumerate(codes):
            mask = font.getmask(chr(code), mode="L")
            width, height = mask.size
            box = mask.getbbox() if width and height else None
            if box is None:
                continue
            pixels = np.array(mask, dtype=np.uint8).reshape(height, width)
            shape = Image.fromarray(pixels[box[1] : box[3], box[0] : box[2]])
            scale = _GLYPH / max(shape.size)
            wide, high = (max(1, round(side * scale)) for side in shape.size)
            shape = shape.resize((wide, high), Image.Resampling.BICUBIC)
            left, top = (_CANVAS - wide) // 2, (_CANVAS - high) // 2
            shapes[number, font_number, top : top + high, left : left + wide] = np.asarray(shape)
    return shapes


def distinct(shapes: NDArray[np.uint8]) -> list[int]:
    """Indices of the characters that look like none before them in most of the fonts."""
    count, font_count = shapes.shape[:2]
    cells = _CANVAS // 4
    small = shapes.reshape(count, font_count, cells, 4, cells, 4).mean(axis=(3, 5)) // 16
    # Small whole numbers in float32: products and sums are exact, on any machine the same.
    pixels = small.reshape(count, font_count, -1).swapaxes(0, 1).astype(np.float32)
    ink = (pixels**2).sum(axis=2)  # [fonts, characters]
    alike = np.zeros((count, count), dtype=np.int64)
    for font_pixels, font_ink in zip(pixels, ink, strict=True):
        difference = font_ink[:, None] + font_ink - 2 * (font_pixels @ font_pixels.T)
        alike += difference < _SAME_SHAPE * np.minimum(font_ink[:, None], font_ink)
    same = alike > font_count / 2
    kept: list[int] = []
    for number in range(count):
        if ink[:, number].min() > 0 and not same[number, kept].any():
            kept.append(number)
    return kept


def draw(shapes: NDArray[np.uint8], count: int, seeds: list[tuple[int, int]]) -> NDArray[np.uint8]:
    """Random drawings of shapes [characters, fonts, canvas, canvas], white on black.

    Returns uint8 [characters, count, 28, 28, 1]; the seeds, one per character, decide all.
    """
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
