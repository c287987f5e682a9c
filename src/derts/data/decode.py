"""From encoded images to uint8 pixels of the wanted size: the one place that opens images."""

from __future__ import annotations

import errno
import io
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from derts.errors import DISK_FULL

if TYPE_CHECKING:
    from derts.data.sources import ListedSplit

Pixels = NDArray[np.uint8]
Broken = tuple[int, str, str]
"""The index, the name and what is wrong, of an image that cannot be read."""

# Pillow knows more, and hands some of them to other programs: PostScript to Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_STEP = 128  # images that a thread decodes at a time
_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
_ALPHA_MODES = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})


@contextmanager
def strict_pillow() -> Iterator[None]:
    """Inside, an image large enough to exhaust memory is an error; other warnings are silent."""
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
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        # A JPEG can be decoded at a fraction of its size; twice the wanted one loses nothing.
        image.draft(None, (2 * size, 2 * size))
        # A damaged EXIF block says nothing about the pixels.
        with suppress(SyntaxError, ValueError, TypeError, KeyError, IndexError, ZeroDivisionError):
            image = ImageOps.exif_transpose(image)
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
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == mode else image.convert(mode)


def decode_all(
    images: ListedSplit, start: int, size: int, channels: int, workers: int
) -> Iterator[tuple[int, Pixels, list[Broken]]]:
    """Decode images from `start` on, several ranges of them at a time, in order.

    For each range: how many images it has, the pixels uint8 [n, size, size, channels] of those
    that can be read, and the others. Call it inside of strict_pillow.
    """
    # Few enough at a time that a thread's pixels stay below 32 MB.
    step = max(1, min(_STEP, 32_000_000 // (size * size * channels)))
    waiting: deque[Future[tuple[int, Pixels, list[Broken]]]] = deque()
    pool = ThreadPoolExecutor(workers, "decode")  # Pillow decodes outside of Python's lock
    try:
        for first in range(start, len(images), step):
            indices = range(first, min(first + step, len(images)))
            waiting.append(pool.submit(_decode_range, images, indices, size, channels))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _decode_range(
    images: ListedSplit, indices: range, size: int, channels: int
) -> tuple[int, Pixels, list[Broken]]:
    pixels = np.empty((len(indices), size, size, channels), dtype=np.uint8)
    broken: list[Broken] = []
    for index in indices:
        try:
            content = images.read(index)
            if len(content) == 0:
                raise ValueError("empty file")
            pixels[index - indices.start - len(broken)] = decode(content, size, channels)
        except Exception as error:  # whatever Pillow raises, but not what the disk does
            if isinstance(error, OSError) and error.errno in (*DISK_FULL, *_TOO_MANY_FILES):
                raise
            reason = (str(error) or type(error).__name__).splitlines()[0][:120]
            if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
                reason = "more pixels than Pillow deems safe"
            elif isinstance(error, UnidentifiedImageError):
                reason = f"not an image of a known format: {', '.join(FORMATS)}"
            broken.append((index, images.name(index), reason))
    return len(indices), pixels[: len(indices) - len(broken)], broken
