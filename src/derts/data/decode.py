"""From encoded images to uint8 pixels of the wanted size: the one place that opens images."""

import errno
import importlib
import io
import os
import re
import threading
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from derts.errors import DISK_FULL

Pixels = NDArray[np.uint8]
Broken = tuple[int, str, str]
"""The index, the name and what is wrong, of an image that cannot be read."""
Decoded = tuple[list[int], Pixels, list[Broken]]
"""Of a range: images that can be read, their pixels [n, size, size, channels], and the others."""

# Pillow knows more, and hands some of them to other programs: PostScript to Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
MOST_PIXELS, MOST_BYTES = 90_000_000, 300_000_000  # of one image, and of its file
MOST_SCANS = 100  # of a JPEG: a camera writes ten, and each goes over the whole image
_STEP = 128  # images that a thread decodes at a time
_NOT_THE_IMAGES = (*DISK_FULL, errno.EMFILE, errno.ENFILE)  # errors that come of the system
_HEIF = re.compile(rb".{4}ftyp(hei|hev|mif1|msf1)", re.DOTALL)


@dataclass(frozen=True)
class Images:
    """Images to decode: files (below `root`), bytes of files as uint8 [n], pixels, or of Pillow.

    Files are called by their path, others by `unnamed` and their number.
    """

    contents: Sequence[str | Path | Pixels | Image.Image] | Pixels
    root: Path | None = None
    unnamed: str = ""

    def __len__(self) -> int:
        return len(self.contents)

    def name(self, index: int) -> str:
        image = self.contents[index]
        return str(image) if isinstance(image, str | Path) else f"{self.unnamed}{index}"

    def read(self, index: int) -> bytes | Pixels | Image.Image:
        image = self.contents[index]
        if not isinstance(image, str | Path):
            return image.tobytes() if isinstance(image, np.ndarray) and image.ndim == 1 else image
        path = self.root / image if self.root else Path(image)
        if not path.is_file():  # a pipe would be waited for
            raise FileNotFoundError("no file of that name that can be read")
        if path.stat().st_size > MOST_BYTES:
            raise BrokenImageError(f"longer than {MOST_BYTES // 10**6} MB")
        return path.read_bytes()


class BrokenImageError(Exception):
    """An image that cannot be read, and why, in a few words."""


@cache
def formats() -> tuple[str, ...]:
    """The formats that are opened: FORMATS, and HEIC where pillow-heif is installed."""
    try:
        importlib.import_module("pillow_heif").register_heif_opener()
    except ImportError:
        return FORMATS
    return (*FORMATS, "HEIF")


class _AtOnce:
    """What all threads share while they decode: room for pixels, and Pillow's warnings.

    Python has one list of warnings for all threads: the first changes it, the last puts it back.
    """

    def __init__(self) -> None:
        self.inside, self.lock, self.turn = 0, threading.Lock(), threading.Lock()
        self.room = threading.Semaphore(128)  # millions of pixels: more than one image may have

    @contextmanager
    def quiet(self) -> Iterator[None]:
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                self.warnings = warnings.catch_warnings(action="ignore")
                self.warnings.__enter__()
                warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            yield
        finally:
            with self.lock:
                self.inside -= 1
                if not self.inside:
                    self.warnings.__exit__(None, None, None)

    @contextmanager
    def holding(self, pixels: int) -> Iterator[None]:
        """Wait until the pixels of this image fit beside those of the other threads."""
        millions = 1 + pixels // 10**6
        with self.turn:
            for _ in range(millions):
                self.room.acquire()
        try:
            yield
        finally:
            self.room.release(millions)


_at_once = _AtOnce()


def decode(content: bytes | Pixels | Image.Image, size: int, channels: int) -> Pixels:
    """One image as uint8 [size, size, channels]; BrokenImageError if that cannot be done.

    content   an image file's bytes; pixels [height, width] or [height, width, 1, 3 or 4]; or a
              Pillow image
    channels  3 for colour, 1 for gray

    The shorter side is scaled to `size` and the centre cut out. An image of that size already
    is not resampled. Transparent parts become white; a camera's rotation is applied.

    >>> import numpy as np
    >>> decode(np.zeros((20, 30, 3), np.uint8), size=8, channels=3).shape
    (8, 8, 3)
    """
    if isinstance(content, np.ndarray) and content.shape == (size, size, channels):
        return content
    try:
        with _at_once.quiet():
            if isinstance(content, bytes):
                return _decode_file(content, size, channels)
            if isinstance(content, np.ndarray):
                content = np.ascontiguousarray(content)
                content = Image.fromarray(content[..., 0] if content.shape[2:] == (1,) else content)
            return fit(content, size, channels)
    except Exception as error:  # whatever Pillow raises
        raise BrokenImageError(_reason(error, content)) from error


def _decode_file(content: bytes, size: int, channels: int) -> Pixels:
    if not content:
        raise BrokenImageError("empty file")
    image: Image.Image = Image.open(io.BytesIO(content), formats=formats())
    pixels = image.width * image.height
    if pixels > MOST_PIXELS:
        raise Image.DecompressionBombError
    if image.format in ("JPEG", "MPO") and content.count(b"\xff\xda") > MOST_SCANS:
        raise BrokenImageError(f"a JPEG of more than {MOST_SCANS} scans")
    with _at_once.holding(pixels):
        # A JPEG can be decoded at a fraction of its size; twice the wanted one loses nothing.
        image.draft(None, (2 * size, 2 * size))
        # A damaged EXIF block says nothing about the pixels.
        with suppress(SyntaxError, ValueError, TypeError, KeyError, IndexError, ZeroDivisionError):
            image = ImageOps.exif_transpose(image)
        return fit(image, size, channels)


def _reason(error: Exception, content: object) -> str:
    """What is wrong with an image, in one line."""
    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return f"more pixels than are safe to unpack: at most {MOST_PIXELS // 10**6} million"
    if isinstance(error, MemoryError):
        return "more pixels than fit into memory"
    if isinstance(error, UnidentifiedImageError):
        if isinstance(content, bytes) and _HEIF.match(content) and "HEIF" not in formats():
            return "it is HEIC, which is not read: convert it, or install pillow-heif"
        return f"not an image of a known format: {', '.join(formats())}"
    text = (str(error) or type(error).__name__).splitlines()[0]
    return re.sub(r"<_io\.[^>]*>", "the file", text)[:120]


def fit(image: Image.Image, size: int, channels: int) -> Pixels:
    """The centre square of any Pillow image as uint8 [size, size, channels]."""
    image = _plain(image, "RGB" if channels == 3 else "L")
    if image.size != (size, size):
        width, height = image.size
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        # Cutting while resampling keeps a very long image from becoming a very large one.
        box = (left, top, left + side, top + side)
        image = image.resize((size, size), Image.Resampling.BICUBIC, box)
    return np.asarray(image, dtype=np.uint8).reshape(size, size, channels)


def _plain(image: Image.Image, mode: str) -> Image.Image:
    """Any mode as RGB or L without transparency."""
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        values = np.asarray(image, dtype=np.float32)
        top = float(values.max(initial=0))
        scale = 255.0 if top <= 1 and image.mode == "F" else 1.0 if top <= 255 else 255 / 65535
        image = Image.fromarray((values * scale).round().clip(0, 255).astype(np.uint8))
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image if image.mode == mode else image.convert(mode)


def decode_all(
    images: Images, start: int, size: int, channels: int, workers: int = 0
) -> Iterator[Decoded]:
    """Decode images from `start` on in order, by so many threads (0: one per core, at most 16)."""
    workers = workers or min(16, os.cpu_count() or 1)
    # Few enough at a time that a thread's pixels stay below 32 MB.
    step = max(1, min(_STEP, 32_000_000 // (size * size * channels)))
    waiting: deque[Future[Decoded]] = deque()
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


def _decode_range(images: Images, indices: range, size: int, channels: int) -> Decoded:
    pixels = np.empty((len(indices), size, size, channels), dtype=np.uint8)
    whole: list[int] = []
    broken: list[Broken] = []
    for index in indices:
        try:
            pixels[len(whole)] = decode(images.read(index), size, channels)
            whole.append(index)
        except (BrokenImageError, OSError) as error:
            if getattr(error, "errno", None) in _NOT_THE_IMAGES:
                raise
            broken.append((index, images.name(index), str(error)))
    return whole, pixels[: len(whole)], broken
