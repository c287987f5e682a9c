"""What every source of images comes down to: splits of images with labels."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
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

    root: Path
    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        """What to call one image in a message."""
        return self.names[index]

    def read(self, index: int) -> bytes:
        """An image file's bytes."""
        path = self.root / self.names[index]
        if not path.is_file():  # a pipe would be waited for
            raise FileNotFoundError("no file of that name that can be read")
        return path.read_bytes()

    def identity(self) -> Iterator[str]:
        """What must be unchanged for work done on these images to be still of use."""
        for name, size in zip(self.names, self.sizes, strict=True):
            yield f"{name}\0{size}"


@dataclass(frozen=True)
class ArrayImages:
    """Images in memory, of the files at `paths`.

    contents  a list of image files, uint8 [bytes] or [bytes, 1]; or pixels uint8 [n, height,
              width, 1 or 3]
    """

    paths: tuple[Path, ...]
    contents: list[Pixels] | Pixels

    def __len__(self) -> int:
        return len(self.contents)

    def name(self, index: int) -> str:
        return f"image {index}"

    def read(self, index: int) -> bytes | Pixels:
        """An image file's bytes, or pixels [height, width, channels]."""
        content = self.contents[index]
        return content.tobytes() if isinstance(self.contents, list) else content

    def identity(self) -> Iterator[str]:
        for path in self.paths:
            yield f"{path.name}\0{_sample_digest(path)}"


def pixel_images(path: Path, pixels: NDArray[Any], blue_first: bool = False) -> ArrayImages:
    """An array of the file at `path`, which must be uint8 [n, height, width, 1 or 3], as images."""
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] not in (1, 3):
        raise DertsError(
            f"{path.name} holds images as {pixels.dtype} {list(pixels.shape)}, not uint8 "
            "[n, height, width, 1 or 3]: rebuild it or use another distribution"
        )
    return ArrayImages((path,), pixels[..., ::-1] if blue_first else pixels)


@dataclass(frozen=True)
class ListedSplit:
    """One split as listed: int64 labels [n] index class_names."""

    class_names: tuple[str, ...]
    labels: NDArray[np.int64]
    images: FileImages | ArrayImages
    categories: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Listing:
    """How to list class folders: the split of the classes, and which are too small.

    Those with fewer than `min_images` are named in `left_out`.
    """

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


def check_memory(paths: Iterable[Path]) -> None:
    """Refuse files that are larger than this machine's memory, in which they will be held."""
    size = sum(path.stat().st_size for path in paths)
    if not hasattr(os, "sysconf"):
        return
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise DertsError(
            f"{next(iter(paths)).parent} has {size / 1e9:.1f} GB of arrays and the memory is "
            f"{memory / 1e9:.1f} GB: prepare it on a larger machine, or unpack it to class folders"
        )


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


def check_counts(split: str, images: int, labels: int, path: Path) -> None:
    """Refuse a split whose images and labels differ in number."""
    if images != labels:
        raise DertsError(
            f"split {split!r} has {images:,} images but {labels:,} labels: "
            f"download {path.name} again"
        )
