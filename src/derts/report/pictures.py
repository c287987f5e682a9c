"""Items as pictures, many with captions on one sheet."""

import base64
import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image

from derts.errors import printable
from derts.report.figures import new_figure, plain, save_figure, shorten

SHEET_LINE = 0.13  # inches of a line under a picture, which has one
SHEET_LETTERS = 17  # of a line, so that it ends before the next picture's
SHEET_LINES = 4  # of one line of a caption, at most
SHEET_PICTURES = 100


def to_picture(pixels: torch.Tensor) -> Image.Image:
    """uint8 [height, width, 1 or 3] as a Pillow image."""
    values = pixels.cpu().numpy()
    return Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values)


def jpeg_text(picture: Image.Image, quality: int) -> str:
    """A picture as a JPEG in base64, as pages hold it."""
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality, optimize=True)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def draw_sheet(
    pictures: Sequence[Image.Image], captions: Sequence[str], path: Path, title: str
) -> None:
    """Write pictures in rows of ten as a PNG, with a few lines under each; at most a hundred."""

    def wrapped(line: str) -> str:  # on as many lines as it needs; of a very long one the ends
        line = shorten(printable(line), SHEET_LINES * SHEET_LETTERS - SHEET_LETTERS // 2)
        return "\n".join(textwrap.wrap(line, SHEET_LETTERS)) or line

    texts = ["\n".join(map(wrapped, caption.split("\n"))) for caption in captions]
    shown = list(zip(pictures, texts, strict=True))[:SHEET_PICTURES]
    columns = max(4, min(10, len(shown)))
    rows = max(1, math.ceil(len(shown) / columns))
    below = SHEET_LINE * max((caption.count("\n") + 1 for _, caption in shown), default=1)
    high = 0.4 + rows * (1 + below)
    figure = new_figure((1.04 * columns, high), layout=None)
    place = {"left": 0.01, "right": 0.99, "wspace": 0.08}
    place |= {"bottom": below / high, "top": 1 - 0.35 / high, "hspace": below}
    panels = figure.subplots(rows, columns, squeeze=False, gridspec_kw=place)
    for axes in panels.flat:
        axes.set_axis_off()
    for axes, (picture, caption) in zip(panels.flat, shown, strict=False):
        axes.imshow(picture.convert("RGB"), aspect="auto")
        axes.text(0, -0.03, plain(caption), fontsize=6.5, va="top", transform=axes.transAxes)
    figure.suptitle(plain(title), fontsize=9, x=0.01, y=1 - 0.12 / high, ha="left")
    save_figure(figure, path, dpi=150)
