"""Packs: .npz files of encoded images, as mini- and tiered-ImageNet are handed on.

A pack holds `data` (uint8, image files end to end), `offsets` [n + 1], `labels` [n],
`class_names`, and `categories` where the classes have super-categories. A split is one pack
(train.npz) or several (train_0.npz, train_1.npz). Nothing in an archive is ever run.
"""

from __future__ import annotations

import zipfile
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from derts.data.decode import Pixels
from derts.data.sources import (
    SPLITS,
    ArrayImages,
    ListedSplit,
    Listing,
    Source,
    check_counts,
    check_memory,
    number_labels,
)
from derts.errors import DertsError

_FOLDERS = ("", "mini-imagenet", "tiered-imagenet-64")


def detect(path: Path) -> Source | None:
    """The source in `path` or in a folder of it with a known name, if packs are there."""
    for folder in (path / name for name in _FOLDERS):
        packs = {split: found for split in SPLITS if (found := _packs(folder, split))}
        if packs:
            first = next(iter(packs.values()))[0]
            name = "tiered-ImageNet" if _has_categories(first) else "mini-ImageNet"
            return Source(f"{name} packs", folder, partial(_list_packs, packs))
    return None


def _packs(folder: Path, split: str) -> list[Path]:
    whole = folder / f"{split}.npz"
    numbered = sorted(folder.glob(f"{split}_[0-9]*.npz"), key=lambda path: (len(path.name), path))
    return numbered or ([whole] if whole.is_file() else [])


def _has_categories(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return "categories.npy" in archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return False


def _list_packs(packs: dict[str, list[Path]], _: Listing) -> dict[str, ListedSplit]:
    check_memory([path for paths in packs.values() for path in paths])
    return {split: _list_split(split, paths) for split, paths in packs.items()}


def _list_split(split: str, paths: list[Path]) -> ListedSplit:
    files: list[Pixels] = []
    names: list[str] = []
    category_of: dict[str, str] = {}
    for path in paths:
        data, offsets, labels, class_names = load_npz(
            path, "data", "offsets", "labels", "class_names"
        )
        flat = offsets.ndim == labels.ndim == class_names.ndim == data.ndim == 1
        if flat:
            check_counts(split, len(offsets) - 1, len(labels), path)
        if not flat or not _in_range(data, offsets, labels, len(class_names)):
            raise DertsError(
                f"{path} has offsets or labels out of range: it is damaged, download it again"
            )
        if _has_categories(path):
            [categories] = load_npz(path, "categories")
            if categories.shape != class_names.shape:
                raise DertsError(f"{path} has no category for every class: download it again")
            category_of.update(zip(map(str, class_names), map(str, categories), strict=True))
        names += [str(name) for name in class_names[labels]]
        files += [data[start:end] for start, end in pairwise(offsets.tolist())]
    used, numbers = number_labels(names)
    known = tuple(category_of.get(name, "") for name in used) if category_of else None
    return ListedSplit(used, numbers, ArrayImages(tuple(paths), files), known)


def _in_range(
    data: NDArray[Any], offsets: NDArray[Any], labels: NDArray[Any], class_count: int
) -> bool:
    return bool(
        data.dtype == np.uint8
        and offsets.dtype.kind in "iu"
        and labels.dtype.kind in "iu"
        and offsets[0] == 0
        and offsets[-1] == len(data)
        and (offsets[1:] >= offsets[:-1]).all()
        and labels.min(initial=0) >= 0
        and labels.max(initial=0) < max(class_count, 1)
    )


def load_npz(path: Path, *names: str) -> list[NDArray[Any]]:
    """Arrays of an .npz, which is not trusted: no pickled objects."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
            missing = [name for name in names if name not in held]
            if missing:
                raise DertsError(
                    f"{path} has no array {missing[0]!r}, only {', '.join(held.files[:6])}: "
                    "download it again, or use another distribution of the data set"
                )
            return [np.asarray(held[name]) for name in names]
    except DertsError:
        raise
    except Exception as error:  # what a damaged archive raises can be anything
        raise DertsError(f"{path} is no readable .npz ({error}): download it again") from error
