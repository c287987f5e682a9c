"""Arrays of .npz archives where they lie, and packs: .npz files of encoded images.

A pack holds `data` (uint8, image files end to end), `offsets` [n + 1], `labels` [n],
`class_names`, and `categories` where the classes have super-categories. A split is one pack
(train.npz) or several (train_0.npz, train_1.npz). Nothing in an archive is ever run.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from derts.data.sources import (
    SPLITS,
    FlatArray,
    ListedSplit,
    Listing,
    PackedImages,
    Source,
    check_counts,
    number_labels,
)
from derts.errors import DISK_FULL, DertsError

_BLOCK = 1 << 22
_FOLDERS = ("", "mini-imagenet", "tiered-imagenet-64")


def detect(path: Path) -> Source | None:
    """The source in `path` or in a folder of it with a known name, if packs are there."""
    for folder in (path / name for name in _FOLDERS):
        packs = {split: found for split in SPLITS if (found := _packs(folder, split))}
        if packs:
            first = next(iter(packs.values()))[0]
            name = "tiered-ImageNet" if has_array(first, "categories") else "mini-ImageNet"
            return Source(f"{name} packs", folder, partial(_list_packs, packs))
    return None


def _packs(folder: Path, split: str) -> list[Path]:
    whole = folder / f"{split}.npz"
    numbered = sorted(folder.glob(f"{split}_[0-9]*.npz"), key=lambda path: (len(path.name), path))
    return numbered or ([whole] if whole.is_file() else [])


def _list_packs(packs: dict[str, list[Path]], listing: Listing) -> dict[str, ListedSplit]:
    return {split: _list_split(split, paths, listing.scratch) for split, paths in packs.items()}


def _list_split(split: str, paths: list[Path], scratch: Path) -> ListedSplit:
    flat_paths: list[Path] = []
    files, starts, lengths = [], [], []
    names: list[str] = []
    category_of: dict[str, str] = {}
    for path in paths:
        data = npz_member(path, "data", scratch)
        offsets, labels, class_names = read_npz(path, "offsets", "labels", "class_names")
        flat = offsets.ndim == labels.ndim == class_names.ndim == len(data.shape) == 1
        if flat:
            check_counts(split, len(offsets) - 1, len(labels), f"download {path.name} again")
        if not flat or not _in_range(offsets, data.shape[0], labels, len(class_names)):
            raise DertsError(
                f"{path} has offsets or labels out of range: it is damaged, download it again"
            )
        if has_array(path, "categories"):
            [categories] = read_npz(path, "categories")
            if categories.shape != class_names.shape:
                raise DertsError(f"{path} has no category for every class: download it again")
            category_of.update(zip(map(str, class_names), map(str, categories), strict=True))
        names += [str(name) for name in class_names[labels]]
        files.append(np.full(len(labels), len(flat_paths)))
        starts.append(data.offset + offsets[:-1].astype(np.int64))
        lengths.append(np.diff(offsets).astype(np.int64))
        flat_paths.append(data.path)
    images = PackedImages(
        tuple(flat_paths), np.concatenate(files), np.concatenate(starts), np.concatenate(lengths)
    )
    used, numbers = number_labels(names)
    known = tuple(category_of.get(name, "") for name in used) if category_of else None
    return ListedSplit(used, numbers, images, known)


def _in_range(offsets: NDArray[Any], length: int, labels: NDArray[Any], class_count: int) -> bool:
    return bool(
        offsets.dtype.kind in "iu"
        and labels.dtype.kind in "iu"
        and offsets[0] == 0
        and offsets[-1] == length
        and (offsets[1:] >= offsets[:-1]).all()
        and labels.min(initial=0) >= 0
        and labels.max(initial=0) < max(class_count, 1)
    )


def has_array(path: Path, name: str) -> bool:
    """Whether an .npz has an array of that name; False for a file that is no archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return f"{name}.npy" in archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return False


def read_npz(path: Path, *names: str) -> list[NDArray[Any]]:
    """Small arrays of an .npz, which is not trusted: no pickled objects."""
    arrays = []
    for name in names:
        with _member(path, name) as (_, member):
            arrays.append(np.lib.format.read_array(member, allow_pickle=False))
    return arrays


def npz_member(path: Path, name: str, scratch: Path) -> FlatArray:
    """One array of an .npz where it lies, or, if it is compressed, unpacked into `scratch`."""
    with _member(path, name) as (info, member):
        version = np.lib.format.read_magic(member)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, is_fortran, dtype = read(member)
        if dtype.hasobject or (is_fortran and len(shape) > 1):
            raise DertsError(
                f"{name!r} in {path} is an array of objects or in Fortran order: rebuild it"
            )
        if info.compress_type == zipfile.ZIP_STORED:
            return FlatArray(path, _data_start(path, info) + member.tell(), shape, dtype)
        flat = scratch / f"{path.stem}-{name}.flat"
        write_blocks(flat, iter(lambda: member.read(_BLOCK), b""))
        return FlatArray(flat, 0, shape, dtype)


def write_blocks(target: Path, blocks: Iterator[bytes]) -> int:
    """Write a file block by block; how many bytes it has."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        return sum(file.write(block) for block in blocks)


@contextmanager
def _member(path: Path, name: str) -> Iterator[tuple[zipfile.ZipInfo, IO[bytes]]]:
    """One member of an archive, opened; whatever is wrong with it is told in a line."""
    try:
        with zipfile.ZipFile(path) as archive:
            if f"{name}.npy" not in archive.namelist():
                held = ", ".join(Path(member).stem for member in archive.namelist()[:6])
                raise DertsError(
                    f"{path} has no array {name!r}, only {held or 'nothing'}: download it again, "
                    "or use another distribution of the data set"
                )
            info = archive.getinfo(f"{name}.npy")
            with archive.open(info) as member:
                yield info, member
    except DertsError:
        raise
    except zipfile.BadZipFile as error:
        raise DertsError(f"{path} is no readable .npz ({error}): download it again") from error
    except Exception as error:  # what a damaged header or stream raises can be anything
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise
        raise DertsError(
            f"{name!r} in {path} cannot be read ({error}): download it again"
        ) from error


def _data_start(path: Path, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin; the local header may differ from the central one."""
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)
        lengths = np.frombuffer(file.read(4), dtype="<u2")
    return info.header_offset + 30 + int(lengths.sum(dtype=np.int64))
