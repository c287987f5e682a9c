"""From the bytes of one image to uint8 pixels of the wanted size.

Worker processes import this module, so it must not import torch.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

Pixels = NDArray[np.uint8]

_ALPHA_MODES = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})


@contextmanager
def strict_pillow() -> Iterator[None]:
    """Inside, an image large enough to exhaust memory is an error; other warnings are silent.

    Pillow warns of harmless oddities (a damaged EXIF block, say) which are no reason to stop.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def decode(content: bytes | Pixels, size: int, channels: int) -> Pixels:
    """One image as uint8 [size, size, channels].

    content   an image file's bytes, or pixels [height, width] or [height, width, 1, 3 or 4]
    channels  3 for colour, 1 for gray

    The shorter side is scaled to `size` and the centre cut out. An image of that size already
    is not resampled. Transparent parts become white; a camera's rotation is applied.

    >>> import numpy as np
    >>> decode(np.zeros((20, 30, 3), np.uint8), size=8, channels=3).shape
    (8, 8, 3)
    """
    if isinstance(content, np.ndarray):
        if content.shape == (size, size, channels):
            return content
        content = np.ascontiguousarray(content)
        image = Image.fromarray(content[..., 0] if content.shape[2:] == (1,) else content)
    else:
        image = Image.open(io.BytesIO(content))
        # A JPEG can be decoded at a fraction of its size; twice the wanted one loses nothing.
        image.draft(None, (2 * size, 2 * size))
        image = _upright(image)
    return fit(image, size, channels)


def fit(image: Image.Image, size: int, channels: int) -> Pixels:
    """The centre square of any Pillow image as uint8 [size, size, channels].

    >>> fit(Image.new("CMYK", (30, 20)), size=8, channels=1).shape
    (8, 8, 1)
    """
    image = _plain(image, "RGB" if channels == 3 else "L")
    if image.size != (size, size):
        width, height = image.size
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        # Cutting while resampling keeps a very long image from becoming a very large one.
        image = image.resize(
            (size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side)
        )
    return np.asarray(image, dtype=np.uint8).reshape(size, size, channels)


def _upright(image: Image.Image) -> Image.Image:
    try:
        rotated = ImageOps.exif_transpose(image)
    except (SyntaxError, ValueError, TypeError, KeyError, IndexError, ZeroDivisionError):
        return image  # a damaged EXIF block says nothing about the pixels
    return rotated


def _plain(image: Image.Image, mode: str) -> Image.Image:
    """Any mode as RGB or L without transparency."""
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        values = np.asarray(image, dtype=np.float64)
        top = float(values.max(initial=0))
        scale = 255.0 if top <= 1 and image.mode == "F" else 1.0 if top <= 255 else 255 / 65535
        image = Image.fromarray((values * scale).round().clip(0, 255).astype(np.uint8))
    if image.mode in _ALPHA_MODES or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image if image.mode == mode else image.convert(mode)
