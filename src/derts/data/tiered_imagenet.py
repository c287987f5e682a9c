"""tiered-ImageNet: pickles of PNG files, or .npz arrays, with pickled labels and categories."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from derts.data.packs import load_npz
from derts.data.safe_pickle import as_list, as_text, load_fields, load_pickle
from derts.data.sources import (
    SPLITS,
    ArrayImages,
    ListedSplit,
    Listing,
    Source,
    check_counts,
    check_memory,
    pixel_images,
)
from derts.errors import DertsError


def detect(path: Path) -> Source | None:
    """The source in `path` or in its folder tiered-imagenet, if images are there."""
    for folder in (path, path / "tiered-imagenet"):
        found = {
            split: image_file
            for split in SPLITS
            for image_file in (folder / f"{split}_images.npz", folder / f"{split}_images_png.pkl")
            if image_file.is_file()
        }
        if found:
            return Source("tiered-ImageNet", folder, partial(_list_splits, found))
    return None


def _list_splits(found: dict[str, Path], _: Listing) -> dict[str, ListedSplit]:
    check_memory(found.values())
    return {split: _list_split(split, path) for split, path in found.items()}


def _list_split(split: str, path: Path) -> ListedSplit:
    label_path = path.parent / f"{split}_labels.pkl"
    if not label_path.is_file():
        raise DertsError(f"{path.name} is there but {label_path} is not: download it too")
    fields = load_fields(label_path)
    labels = _numbers(fields, ("label_specific", "labels"), label_path)
    if labels is None:
        raise DertsError(
            f"{label_path} has neither label_specific nor labels but "
            f"{', '.join(fields) or 'no dictionary'}: download it again"
        )
    if path.suffix == ".npz":
        # These arrays were decoded by OpenCV, which puts blue first.
        images = pixel_images(path, load_npz(path, "images")[0], blue_first=True)
    else:
        images = _png_images(path)
    check_counts(split, len(images), len(labels), label_path)
    numbers, first, labels = np.unique(labels, return_index=True, return_inverse=True)
    categories = None
    general = _numbers(fields, ("label_general",), label_path)
    if general is not None:
        check_counts("label_general", len(labels), len(general), label_path)
        categories = _names(fields, "label_general_str", general[first], label_path)
    class_names = _unique(_names(fields, "label_specific_str", numbers, label_path))
    return ListedSplit(class_names, labels.astype(np.int64), images, categories)


def _png_images(path: Path) -> ArrayImages:
    content = load_pickle(path)
    arrays = content.tolist() if isinstance(content, np.ndarray) else content
    if not isinstance(arrays, list) or not all(
        isinstance(array, np.ndarray) and array.dtype == np.uint8 for array in arrays
    ):
        raise DertsError(f"{path} holds no list of encoded images: download it again")
    return ArrayImages((path,), arrays)


def _numbers(fields: dict[str, Any], keys: tuple[str, ...], path: Path) -> NDArray[np.int64] | None:
    """The first of these fields that is there, as numbers [n]."""
    for key in keys:
        if key in fields:
            try:
                numbers = np.array(as_list(fields[key], path))
            except ValueError:  # lists of several lengths
                numbers = np.array(None)
            if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
                raise DertsError(f"{key} in {path} is no list of whole numbers: download it again")
            return numbers.astype(np.int64)
    return None


def _names(
    fields: dict[str, Any], key: str, numbers: NDArray[np.int64], path: Path
) -> tuple[str, ...]:
    """The text of each label number, or the number itself where no texts are given."""
    texts = fields.get(key)
    if texts is None:
        return tuple(str(number) for number in numbers.tolist())
    texts = as_list(texts, path)
    if not 0 <= numbers.min(initial=0) <= numbers.max(initial=0) < len(texts):
        raise DertsError(f"{key} in {path} has no text for every label: download it again")
    return tuple(as_text(texts[number]) for number in numbers.tolist())


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    """Two kinds of crane are two classes: later ones are numbered.

    >>> _unique(("crane", "dog", "crane"))
    ('crane', 'dog', 'crane (2)')
    """
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(unique)
