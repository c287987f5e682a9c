"""What every source of images comes down to: splits of images with labels."""

import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from derts.data.decode import Images
from derts.errors import DertsError
from derts.files import sample_digest
from derts.hardware import free_memory

SPLITS = ("train", "val", "test")
DEFAULT_FRACTIONS = (0.64, 0.16, 0.20)
MOST_SQUEEZED = 100
NO_ZIP = (zipfile.BadZipFile, OSError, ValueError, NotImplementedError)


@dataclass(frozen=True)
class ListedSplit:
    """Images and their labels."""

    class_names: tuple[str, ...]
    labels: NDArray[np.int64]  # [n]: indices of class_names
    images: Images
    categories: tuple[str, ...] | None = None
    read_from: tuple[Path, ...] = ()  # the files that held images which are in memory

    def __len__(self) -> int:
        return len(self.labels)

    def identity(self) -> Iterator[str]:
        """Lines: work done on these images is of use as long as they are the same."""
        for path in self.read_from:
            yield f"{path.name}\0{sample_digest(path)}"
        if root := self.images.root:
            for name in map(str, self.images.contents):
                yield f"{name}\0{(root / name).stat().st_size if (root / name).exists() else 0}"


@dataclass(frozen=True)
class Listing:
    """How to list class folders, and what was left out of the list."""

    seed: int = 0
    split_fractions: tuple[float, float, float] = DEFAULT_FRACTIONS
    min_images: int = 1
    class_level: int = 0  # how many folders down a class is (0: 1, if that is clear)
    left_out: list[str] = field(default_factory=list)  # classes with fewer than min_images
    loose: list[str] = field(default_factory=list)  # images that lie in no class
    unread: Counter[str] = field(default_factory=Counter)  # photographs, by their kind


@dataclass(frozen=True)
class Source:
    """A data set found on disk, and the way to list its splits."""

    kind: str
    path: Path
    list_splits: Callable[[Listing], dict[str, ListedSplit]] = field(repr=False)


def check_unpacked_size(paths: list[Path]) -> None:
    """Refuse files that are larger, unpacked, than the memory in which they will be held."""
    size, free = 0, free_memory(torch.device("cpu"))
    for path in paths:
        packed = unpacked = path.stat().st_size
        with suppress(*NO_ZIP), zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > max(MOST_SQUEEZED * packed, 100_000_000):  # no images can be squeezed so
            wrong = f"{path} would unpack from {packed / 1e6:,.1f} MB to {unpacked / 1e6:,.0f} MB"
            raise DertsError(f"{wrong}, which is no data set: download it again")
        size += unpacked
    if free is not None and size > free:
        wrong = f"{size / 1e9:.1f} GB of arrays do not fit into the {free / 1e9:.1f} GB of memory"
        raise DertsError(f"{paths[0].parent}: {wrong}: prepare it on a larger machine")


def number_labels(names: list[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Class names in order of appearance, and a label [n] for each given name."""
    number_of: dict[str, int] = {}
    labels = [number_of.setdefault(name, len(number_of)) for name in names]
    return tuple(number_of), np.array(labels, dtype=np.int64)
