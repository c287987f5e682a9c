"""Drawing characters: which ones the fonts share and can be told apart, and each in many hands."""

from __future__ import annotations

import math
import unicodedata
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.ft2font import FT2Font
from numpy.typing import NDArray
from PIL import Image, ImageFont

from derts.errors import DertsError

SIDE = 28
_CANVAS, _GLYPH = 48, 40  # a glyph's longer side on its canvas, in pixels
_CATEGORIES = frozenset({"Lu", "Ll", "Lt", "Lo", "Nd"})
# A share of the ink: below it the eye takes two shapes for one, at this size and with noise.
_SAME_SHAPE = 0.12


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
    small = torch.from_numpy(shapes).float().div(255)
    small = F.avg_pool2d(small, kernel_size=4).flatten(2).transpose(0, 1)  # [fonts, n, pixels]
    ink = small.sum(dim=2)
    alike = torch.zeros(len(shapes), len(shapes))
    for font_pixels, font_ink in zip(small, ink, strict=True):
        difference = torch.cdist(font_pixels, font_pixels, p=1)
        alike += (difference < _SAME_SHAPE * torch.minimum(font_ink[:, None], font_ink)).float()
    same = (alike > small.shape[0] / 2).numpy()
    kept: list[int] = []
    for number in range(len(shapes)):
        if ink[:, number].min() > 0 and not same[number, kept].any():
            kept.append(number)
    return kept


def draw(shapes: NDArray[np.uint8], count: int, seeds: list[tuple[int, int]]) -> torch.Tensor:
    """Random drawings of shapes [characters, fonts, canvas, canvas], white on black.

    Returns uint8 [characters, count, 28, 28, 1]; the seeds, one per character, decide all.
    """
    drawn = torch.empty(len(shapes), count, SIDE, SIDE, 1, dtype=torch.uint8)
    together = max(1, 512 // count)  # characters at once: few enough to stay in the cache
    for start in range(0, len(shapes), together):
        batch = [
            _random_drawing(shapes[number], count, np.random.default_rng(seeds[number]))
            for number in range(start, min(start + together, len(shapes)))
        ]
        canvas, warps, strength, noise = (
            torch.from_numpy(np.concatenate(parts)) for parts in zip(*batch, strict=True)
        )
        shape = [len(canvas), 1, 2 * SIDE, 2 * SIDE]
        grid = F.affine_grid(warps, shape, align_corners=False)
        pixels = F.grid_sample(canvas[:, None].float(), grid, align_corners=False)
        pixels = F.avg_pool2d(pixels, kernel_size=2)[:, 0]
        pixels = (pixels * strength + noise * 255).clamp(0, 255).round()
        drawn[start : start + together] = pixels.to(torch.uint8).reshape(
            len(batch), count, SIDE, SIDE, 1
        )
    return drawn


def _random_drawing(
    shape: NDArray[np.uint8], count: int, random: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Canvases [count, canvas, canvas], warps, strengths [count, 1, 1], noise [count, 28, 28]."""
    canvas = shape[random.integers(len(shape), size=count)]
    warps = _random_warps(random, count)
    strength = random.uniform(0.55, 1.0, (count, 1, 1)).astype(np.float32)
    level = random.uniform(0.02, 0.15, (count, 1, 1)).astype(np.float32)
    noise = random.standard_normal((count, SIDE, SIDE), dtype=np.float32) * level
    return canvas, warps, strength, noise


def _random_warps(random: np.random.Generator, count: int) -> NDArray[np.float32]:
    """Affine maps float32 [count, 2, 3] from the drawing's coordinates to the canvas's."""
    angle = random.uniform(-math.radians(20), math.radians(20), count)
    shear = random.uniform(-0.3, 0.3, count)
    share = random.uniform(0.55, 0.85, (count, 1))  # of the drawing that the glyph takes
    stretch = np.exp(random.uniform(-0.2, 0.2, (count, 1)) * np.array([1, -1]))
    scale = _GLYPH / _CANVAS / (share * stretch)
    shift = random.uniform(-1, 1, (count, 2)) * (1 - share) * 0.7
    cosine, sine = np.cos(angle), np.sin(angle)
    linear = np.empty((count, 2, 2))
    linear[:, 0, 0], linear[:, 0, 1] = cosine, sine + shear * cosine
    linear[:, 1, 0], linear[:, 1, 1] = -sine, cosine - shear * sine
    linear *= scale[:, :, None]
    offset = -np.einsum("nij,nj->ni", linear, shift)
    return np.concatenate([linear, offset[:, :, None]], axis=2).astype(np.float32)
