"""What every source of images comes down to: splits of encoded images with labels.

A source lists its splits without reading pixels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from derts.data.decode import Pixels
from derts.errors import DertsError

SPLITS = ("train", "val", "test")
DEFAULT_FRACTIONS = (0.64, 0.16, 0.20)


@dataclass(frozen=True)
class FileImages:
    """One image file each, named relative to a root; sizes tell a changed file."""

    root: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        """What to call one image in a message."""
        return self.names[index]

    def read(self, index: int) -> bytes:
        """An image file's bytes."""
        path = Path(self.root) / self.names[index]
        if not path.is_file():  # a pipe would be waited for
            raise FileNotFoundError("no file of that name that can be read")
        return path.read_bytes()

    def identity(self) -> Iterator[str]:
        """What must be unchanged for work done on these images to be still of use."""
        for name, size in zip(self.names, self.sizes, strict=True):
            yield f"{name}\0{size}"


@dataclass(frozen=True)
class PackedImages:
    """Images that lie in larger files: each at its offset [n], of its length [n].

    file              which of the paths [n]
    shape             of decoded pixels; None where the bytes are an image file's
    reverse_channels  the pixels are blue, green, red
    """

    paths: tuple[Path, ...]
    file: NDArray[np.int64]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    shape: tuple[int, int, int] | None = None
    reverse_channels: bool = False

    def __len__(self) -> int:
        return len(self.offsets)

    def name(self, index: int) -> str:
        return f"image {index} of {self.paths[int(self.file[index])].name}"

    def read(self, index: int) -> bytes | Pixels:
        """An image file's bytes, or pixels [height, width, channels]."""
        with self.paths[int(self.file[index])].open("rb") as file:
            file.seek(int(self.offsets[index]))
            content = file.read(int(self.lengths[index]))
        if len(content) != self.lengths[index]:
            raise OSError("the file ends before this image does")
        if self.shape is None:
            return content
        pixels: Pixels = np.frombuffer(content, dtype=np.uint8).reshape(self.shape)
        return pixels[..., ::-1] if self.reverse_channels else pixels

    def identity(self) -> Iterator[str]:
        for path in self.paths:
            yield f"{path.name}\0{_sample_digest(path)}"


@dataclass(frozen=True)
class FlatArray:
    """An array in C order that starts at an offset of a file."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def images(self, *, reverse_channels: bool = False) -> PackedImages:
        """The array, which must be uint8 [n, height, width, channels], as images."""
        if self.dtype != np.uint8 or len(self.shape) != 4 or self.shape[3] not in (1, 3):
            raise DertsError(
                f"{self.path.name} holds images as {self.dtype} {list(self.shape)}, not uint8 "
                "[n, height, width, 1 or 3]: rebuild it or use another distribution"
            )
        count, height, width, channels = self.shape
        length = height * width * channels
        return PackedImages(
            (self.path,),
            np.zeros(count, dtype=np.int64),
            self.offset + length * np.arange(count, dtype=np.int64),
            np.full(count, length, dtype=np.int64),
            (height, width, channels),
            reverse_channels,
        )


@dataclass(frozen=True)
class ListedSplit:
    """One split as listed: int64 labels [n] index class_names."""

    class_names: tuple[str, ...]
    labels: NDArray[np.int64]
    images: FileImages | PackedImages
    categories: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Listing:
    """What listing a source may need: where to put temporary files, how to split classes.

    Folders leave out classes with fewer than `min_images` and name them in `left_out`.
    """

    scratch: Path
    seed: int = 0
    split_fractions: tuple[float, float, float] = DEFAULT_FRACTIONS
    min_images: int = 1
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Source:
    """A data set found on disk, and the way to list its splits."""

    kind: str
    path: Path
    splits: Callable[[Listing], dict[str, ListedSplit]] = field(repr=False)


def _sample_digest(path: Path) -> str:
    """A digest of a file's length and of 256 blocks spread over it: quick at any size."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for position in sorted({size * step // 256 for step in range(256)}):
            file.seek(position)
            digest.update(file.read(4096))
    return digest.hexdigest()


def number_labels(names: list[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Class names in order of appearance, and a label [n] for each given name.

    >>> number_labels(["b", "a", "b"])
    (('b', 'a'), array([0, 1, 0]))
    """
    number_of: dict[str, int] = {}
    labels = [number_of.setdefault(name, len(number_of)) for name in names]
    return tuple(number_of), np.array(labels, dtype=np.int64)


def check_counts(split: str, images: int, labels: int, fix: str) -> None:
    """Refuse a split whose images and labels differ in number."""
    if images != labels:
        raise DertsError(f"split {split!r} has {images:,} images but {labels:,} labels: {fix}")
