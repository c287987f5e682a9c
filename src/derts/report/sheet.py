"""A sheet of pictures with a few lines under each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from derts.report.figures import any_letters, plain, save_figure, shorten

SIDE, LINE = 96, 11  # pixels of a picture, and of a line under it
LETTERS = 17  # of a line, so that it ends before the next picture's
MOST = 100


def draw_sheet(
    pictures: Sequence[Image.Image], captions: Sequence[str], path: Path, title: str
) -> None:
    """Write pictures in rows of ten as a PNG, at most the first hundred."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = list(zip(pictures, captions, strict=True))[:MOST]
    columns = max(1, min(10, len(shown)))
    rows = max(1, math.ceil(len(shown) / columns))
    lines = max((caption.count("\n") + 1 for _, caption in shown), default=1)
    step = SIDE + 12 + LINE * lines
    width, height = max(4, columns) * (SIDE + 8), rows * step
    canvas = np.full((height, width, 3), 255, dtype=np.uint8)
    figure = Figure(figsize=(width / 100, height / 100 + 0.4))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, height / (height + 40)))
    for number, (picture, caption) in enumerate(shown):
        x, y = number % columns * (SIDE + 8) + 4, number // columns * step
        square = picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        canvas[y : y + SIDE, x : x + SIDE] = np.asarray(square)
        text = "\n".join(shorten(line, LETTERS) for line in caption.split("\n"))
        axes.text(x, y + SIDE + 3, plain(text), fontsize=6.5, va="top")
    axes.imshow(canvas)
    axes.set_axis_off()
    figure.suptitle(plain(title), fontsize=9, x=4 / width, y=1 - 12 / (height + 40), ha="left")
    with any_letters():
        save_figure(figure, path, dpi=150)
