"""mini-ImageNet as it is usually handed on: csv lists with images/, or pickles."""

from __future__ import annotations

import csv
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from derts.data.safe_pickle import as_list, as_text, load_fields
from derts.data.sources import (
    SPLITS,
    FileImages,
    ListedSplit,
    Listing,
    Source,
    check_counts,
    check_memory,
    number_labels,
    pixel_images,
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
    """The source in `path` or in its folder mini-imagenet, if one of the two forms is there."""
    for folder in (path, path / "mini-imagenet"):
        pickles = {
            split: folder / name
            for split, names in _PICKLE_NAMES.items()
            for name in names
            if (folder / name).is_file()
        }
        if pickles:
            return Source("mini-ImageNet pickles", folder, partial(_list_pickles, pickles))
        tables = {s: folder / f"{s}.csv" for s in SPLITS if (folder / f"{s}.csv").is_file()}
        if tables and (folder / "images").is_dir():
            return Source("mini-ImageNet csv", folder, partial(_list_csv, tables))
    return None


def _list_csv(tables: dict[str, Path], _: Listing) -> dict[str, ListedSplit]:
    folder = next(iter(tables.values())).parent / "images"
    sizes = {entry.name: entry.stat().st_size for entry in os.scandir(folder) if entry.is_file()}
    return {split: _list_table(table, folder, sizes) for split, table in tables.items()}


def _list_table(table: Path, folder: Path, sizes: dict[str, int]) -> ListedSplit:
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DertsError(f"{table} is no csv in UTF-8 ({error}): save it as such") from error
    if not rows or not {"filename", "label"} <= rows[0].keys():
        raise DertsError(f"{table} must have a header filename,label and a row per image: add them")
    names = [str(row["filename"] or "") for row in rows]
    missing = [name for name in names if not _is_inside(name, table, folder, sizes)]
    if missing:
        raise DertsError(
            f"{len(missing):,} of {len(rows):,} images named in {table} are not in "
            f"{folder.name}/, the first is {missing[0]!r}: download them, or remove those rows"
        )
    images = FileImages(folder, tuple(names), tuple(sizes[name] for name in names))
    return ListedSplit(*number_labels([str(row["label"]) for row in rows]), images)


def _is_inside(name: str, table: Path, folder: Path, sizes: dict[str, int]) -> bool:
    """Whether a named image is there (its size is then known); an error if it is elsewhere."""
    if name and name not in sizes and "\0" not in name:
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise DertsError(
                f"{table} names {name!r}, which is outside of {folder.name}/: remove that row"
            )
        if path.is_file():
            sizes[name] = path.stat().st_size
    return name in sizes


def _list_pickles(pickles: dict[str, Path], _: Listing) -> dict[str, ListedSplit]:
    check_memory(pickles.values())
    return {split: _list_pickle(split, path) for split, path in pickles.items()}


def _list_pickle(split: str, path: Path) -> ListedSplit:
    fields = load_fields(path)
    pixels = fields.get("image_data", fields.get("data"))
    if not isinstance(pixels, np.ndarray) or not {"class_dict", "labels"} & fields.keys():
        held = ", ".join(fields) or "no dictionary"
        raise DertsError(
            f"{path} must hold image_data with class_dict, or data with labels, but holds {held}: "
            "use another distribution of mini-ImageNet"
        )
    images = pixel_images(path, pixels)
    if "class_dict" in fields:
        names = _names_of_class_dict(path, fields["class_dict"], len(images))
    else:
        names = [as_text(label) for label in as_list(fields["labels"], path)]
        known = fields.get("catname2label")
        if isinstance(known, dict):
            name_of = {as_text(number): as_text(name) for name, number in known.items()}
            names = [name_of.get(name, name) for name in names]
    check_counts(split, len(images), len(names), path)
    return ListedSplit(*number_labels(names), images)


def _names_of_class_dict(path: Path, class_dict: Any, count: int) -> list[str]:
    """The class of each of `count` images, of a dictionary of class name to image numbers."""
    name_of: dict[int, str] = {}
    for name, numbers in class_dict.items() if isinstance(class_dict, dict) else ():
        for number in as_list(numbers, path):
            if not isinstance(number, int) or not 0 <= number < count:
                raise DertsError(
                    f"{path}: class_dict names image {number!r} of {count}: download it again"
                )
            name_of[number] = as_text(name)
    if len(name_of) < count:
        missing = count - len(name_of)
        raise DertsError(
            f"{path}: {missing:,} images are in no class of class_dict: download it again"
        )
    return [name_of[number] for number in range(count)]
