"""mini-ImageNet as it is usually handed on: csv lists with images/, pickles, or JPEG packs."""

from __future__ import annotations

import csv
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from derts.data.flat_file import npz_member, pickled_array, read_npz
from derts.data.pickled_array import PickledArray
from derts.data.safe_pickle import load_pickle
from derts.data.source import (
    SPLITS,
    FileImages,
    Listing,
    PackedImages,
    Source,
    Split,
    check_counts,
    number_labels,
)
from derts.errors import DertsError

_PICKLE_NAMES = {
    "train": (
        "mini-imagenet-cache-train.pkl",
        "miniImageNet_category_split_train_phase_train.pickle",
    ),
    "val": ("mini-imagenet-cache-val.pkl", "miniImageNet_category_split_val.pickle"),
    "test": ("mini-imagenet-cache-test.pkl", "miniImageNet_category_split_test.pickle"),
}


def detect(path: Path) -> Source | None:
    """The source in `path` or in its folder mini-imagenet, if one of the three forms is there."""
    for folder in (path, path / "mini-imagenet"):
        packs = {split: _packs(folder, split) for split in SPLITS if _packs(folder, split)}
        if packs:
            return Source("mini-ImageNet packs", folder, partial(_list_packs, packs))
        pickles = {
            split: folder / name
            for split, names in _PICKLE_NAMES.items()
            for name in names
            if (folder / name).is_file()
        }
        if pickles:
            return Source("mini-ImageNet pickles", folder, partial(_list_pickles, pickles))
        tables = {split: folder / f"{split}.csv" for split in SPLITS}
        tables = {split: table for split, table in tables.items() if table.is_file()}
        if tables and (folder / "images").is_dir():
            return Source("mini-ImageNet csv", folder, partial(_list_csv, tables))
    return None


def _packs(folder: Path, split: str) -> list[Path]:
    numbered = folder.glob(f"{split}_[0-9]*.npz")
    whole = folder / f"{split}.npz"
    return sorted(numbered, key=lambda path: (len(path.name), path.name)) or (
        [whole] if whole.is_file() else []
    )


def _list_packs(packs: dict[str, list[Path]], listing: Listing) -> dict[str, Split]:
    return {split: _list_pack(split, paths, listing.scratch) for split, paths in packs.items()}


def _list_pack(split: str, paths: list[Path], scratch: Path) -> Split:
    files, starts, lengths, names = [], [], [], []
    flat_paths = []
    for number, path in enumerate(paths):
        data = npz_member(path, "data", scratch)
        offsets, labels, class_names = read_npz(path, "offsets", "labels", "class_names")
        check_counts(split, len(offsets) - 1, len(labels), f"download {path.name} again")
        if not _valid_offsets(offsets, data.shape) or not _valid_labels(labels, len(class_names)):
            raise DertsError(
                f"{path} has offsets or labels out of range: it is damaged, download it again"
            )
        flat_paths.append(data.path)
        files.append(np.full(len(labels), number, dtype=np.int64))
        starts.append(data.offset + offsets[:-1].astype(np.int64))
        lengths.append(np.diff(offsets).astype(np.int64))
        names += [str(name) for name in class_names[labels].tolist()]
    images = PackedImages(
        tuple(flat_paths), np.concatenate(files), np.concatenate(starts), np.concatenate(lengths)
    )
    return Split(*number_labels(names), images)


def _valid_offsets(offsets: Any, shape: tuple[int, ...]) -> bool:
    return bool(
        len(shape) == 1
        and offsets.dtype.kind in "iu"
        and offsets[0] == 0
        and offsets[-1] == shape[0]
        and (np.diff(offsets) >= 0).all()
    )


def _valid_labels(labels: Any, classes: int) -> bool:
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        return False
    return len(labels) == 0 or bool(labels.min() >= 0 and labels.max() < classes)


def _list_csv(tables: dict[str, Path], listing: Listing) -> dict[str, Split]:
    folder = next(iter(tables.values())).parent / "images"
    sizes = {entry.name: entry.stat().st_size for entry in os.scandir(folder) if entry.is_file()}
    return {split: _list_table(table, folder, sizes) for split, table in tables.items()}


def _list_table(table: Path, folder: Path, sizes: dict[str, int]) -> Split:
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DertsError(f"{table} is no csv in UTF-8 ({error}): save it as such") from error
    if not rows or not {"filename", "label"} <= rows[0].keys():
        raise DertsError(f"{table} must have a header filename,label and a row per image: add them")
    names = [str(row["filename"] or "") for row in rows]
    missing = []
    for name in names:
        if "\0" in name:
            missing.append(name)
        elif name not in sizes:
            path = folder / name
            if not path.resolve().is_relative_to(folder.resolve()):
                raise DertsError(
                    f"{table} names {name!r}, which is outside of {folder.name}/: remove that row"
                )
            if not name or not path.is_file():
                missing.append(name)
            else:
                sizes[name] = path.stat().st_size
    if missing:
        raise DertsError(
            f"{len(missing):,} of {len(rows):,} images named in {table} are not in "
            f"{folder.name}/, the first is {missing[0]!r}: download them, or remove those rows"
        )
    images = FileImages(str(folder), tuple(names), tuple(sizes[name] for name in names))
    return Split(*number_labels([str(row["label"]) for row in rows]), images)


def _list_pickles(pickles: dict[str, Path], listing: Listing) -> dict[str, Split]:
    return {split: _list_pickle(split, path, listing.scratch) for split, path in pickles.items()}


def _list_pickle(split: str, path: Path, scratch: Path) -> Split:
    content = load_pickle(path)
    content = {_text(key): value for key, value in content.items()} if _is_dict(content) else {}
    pixels = content.get("image_data", content.get("data"))
    if not isinstance(pixels, PickledArray) or not {"class_dict", "labels"} & content.keys():
        held = ", ".join(content) or "no dictionary"
        raise DertsError(
            f"{path} must hold image_data with class_dict, or data with labels, but holds {held}: "
            "use another distribution of mini-ImageNet"
        )
    images = pickled_array(path, pixels, scratch).images()
    if "class_dict" in content:
        names = _names_of_class_dict(path, content["class_dict"], len(images))
    else:
        names = [_text(label) for label in _plain_list(path, content["labels"])]
        known = content.get("catname2label")
        if isinstance(known, dict):
            name_of = {_text(number): _text(name) for name, number in known.items()}
            names = [name_of.get(name, name) for name in names]
    check_counts(split, len(images), len(names), f"download {path.name} again")
    return Split(*number_labels(names), images)


def _names_of_class_dict(path: Path, class_dict: Any, count: int) -> list[str]:
    names: list[str | None] = [None] * count
    for name, indices in class_dict.items() if _is_dict(class_dict) else ():
        for index in _plain_list(path, indices):
            if not isinstance(index, int) or not 0 <= index < count:
                raise DertsError(
                    f"{path}: class_dict names image {index!r} of {count}: download it again"
                )
            names[index] = _text(name)
    found = [name for name in names if name is not None]
    if len(found) < count:
        raise DertsError(
            f"{path}: {count - len(found):,} images are in no class of class_dict: "
            "download it again"
        )
    return found


def _plain_list(path: Path, values: Any) -> list[Any]:
    if isinstance(values, PickledArray):
        if isinstance(values.values, list):
            return values.values
        return list(values.numpy(path).reshape(-1).tolist())
    return list(values)


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
