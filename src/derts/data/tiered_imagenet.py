"""tiered-ImageNet: pickles of PNG files, or .npz arrays, with pickled labels and categories."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from derts.data.flat_file import npz_member
from derts.data.pickled_array import PickledArray, Stretch, read_stretch
from derts.data.safe_pickle import load_pickle
from derts.data.source import SPLITS, Images, Listing, PackedImages, Source, Split, check_counts
from derts.errors import DertsError


def detect(path: Path) -> Source | None:
    """The source in `path` or in its folder tiered-imagenet, if images or labels are there."""
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


def _list_splits(found: dict[str, Path], listing: Listing) -> dict[str, Split]:
    return {split: _list_split(split, path, listing.scratch) for split, path in found.items()}


def _list_split(split: str, path: Path, scratch: Path) -> Split:
    label_path = path.parent / f"{split}_labels.pkl"
    if not label_path.is_file():
        raise DertsError(f"{path.name} is there but {label_path} is not: download it too")
    content = load_pickle(label_path)
    if not isinstance(content, dict):
        raise DertsError(f"{label_path} holds no dictionary of labels: download it again")
    fields = {_text(key, label_path): value for key, value in content.items()}
    labels = _numbers(fields, ("label_specific", "labels"), label_path)
    if labels is None:
        raise DertsError(
            f"{label_path} has neither label_specific nor labels but {', '.join(fields)}: "
            "download it again"
        )
    images: Images
    if path.suffix == ".npz":
        # These arrays were decoded by OpenCV, which puts blue first.
        images = npz_member(path, "images", scratch).images(reverse_channels=True)
    else:
        images = _png_images(path, scratch)
    check_counts(split, len(images), len(labels), f"download {label_path.name} again")
    numbers, labels = np.unique(labels, return_inverse=True)
    class_names = _unique(_names(fields, "label_specific_str", numbers, label_path))
    return Split(
        class_names,
        labels.astype(np.int64),
        images,
        _categories(fields, labels, len(class_names), label_path),
    )


def _png_images(path: Path, scratch: Path) -> PackedImages:
    """The places of the encoded images; short ones are copied to a file of their own."""
    content = load_pickle(path)
    arrays = content.values if isinstance(content, PickledArray) else content
    if not isinstance(arrays, list) or not all(
        isinstance(array, PickledArray) and array.dtype == np.uint8 for array in arrays
    ):
        raise DertsError(f"{path} holds no list of encoded images: download it again")
    count = len(arrays)
    file, offsets, lengths = (np.zeros(count, dtype=np.int64) for _ in range(3))
    spool = scratch / f"{path.stem}.flat"
    spool.parent.mkdir(parents=True, exist_ok=True)
    paths = [path]
    with spool.open("wb") as spooled:
        for number, array in enumerate(arrays):
            values = array.values
            if isinstance(values, Stretch) and not values.is_text:
                offsets[number], lengths[number] = values.offset, values.length
                continue
            encoded = read_stretch(path, values) if isinstance(values, Stretch) else values
            file[number], offsets[number], lengths[number] = 1, spooled.tell(), len(encoded)
            spooled.write(encoded)
    if file.any():
        paths.append(spool)
    return PackedImages(tuple(paths), file, offsets, lengths)


def _numbers(fields: dict[str, Any], keys: tuple[str, ...], path: Path) -> NDArray[np.int64] | None:
    for key in keys:
        if key in fields:
            value = fields[key]
            numbers = value.numpy(path) if isinstance(value, PickledArray) else np.array(value)
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
    if isinstance(texts, PickledArray):
        texts = texts.values if isinstance(texts.values, list) else texts.numpy(path).tolist()
    if not isinstance(texts, list) or len(texts) <= int(numbers.max(initial=0)):
        raise DertsError(f"{key} in {path} has no text for every label: download it again")
    return tuple(_text(texts[number], path) for number in numbers.tolist())


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


def _categories(
    fields: dict[str, Any], labels: NDArray[np.int64], classes: int, path: Path
) -> tuple[str, ...] | None:
    general = _numbers(fields, ("label_general",), path)
    if general is None:
        return None
    check_counts("label_general", len(labels), len(general), f"download {path.name} again")
    first = np.zeros(classes, dtype=np.int64)
    first[labels[::-1]] = general[::-1]
    return _names(fields, "label_general_str", first, path)


def _text(value: Any, path: Path) -> str:
    if isinstance(value, Stretch):
        value = read_stretch(path, value)
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
