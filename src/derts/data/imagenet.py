"""mini- and tiered-ImageNet in the forms in which they are handed on.

csv      mini: images/ with train.csv, val.csv, test.csv (filename,label)
pickles  mini: dictionaries of pixels with class_dict or labels
pickles  tiered: lists of PNG files, or .npz of pixels, with pickled labels and categories
packs    both: .npz of `data` (uint8, image files end to end), `offsets` [n + 1], `labels` [n],
         `class_names`, and `categories` where there are any; train.npz, or train_0.npz and so on
"""

import zipfile
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from derts.data.decode import Images, Pixels
from derts.data.safe_pickle import as_list, as_text, load_fields, load_pickle
from derts.data.sources import SPLITS, ListedSplit, Source, check_unpacked_size, number_labels
from derts.errors import DertsError
from derts.files import read_csv

_AGAIN = "download it again"


def detect(path: Path) -> Source | None:
    """The source in `path`, or in a folder of it with a known name, in one of these forms."""
    for folder in (path / name for name in ("", "mini-imagenet", "tiered-imagenet-64")):
        packs = {split: found for split in SPLITS if (found := _packs(folder, split))}
        if packs:
            first = next(iter(packs.values()))[0]
            name = "tiered-ImageNet" if _has_categories(first) else "mini-ImageNet"
            return _source(f"{name} packs", folder, _list_packs, packs)
    for folder in (path, path / "mini-imagenet"):
        names = ("mini-imagenet-cache-{}.pkl", "miniImageNet_category_split_{phase}.pickle")
        if pickles := _files(folder, *names):
            return _source("mini-ImageNet pickles", folder, _list_pickle, pickles)
        if (tables := _files(folder, "{}.csv")) and (folder / "images").is_dir():
            return _source("mini-ImageNet csv", folder, _list_csv, tables)
    for folder in (path, path / "tiered-imagenet"):
        if images := _files(folder, "{}_images.npz", "{}_images_png.pkl"):
            return _source("tiered-ImageNet", folder, _list_tiered, images)
    return None


def _files(folder: Path, *patterns: str) -> dict[str, list[Path]]:
    return {
        split: [path]
        for split in SPLITS
        for pattern in patterns
        for phase in ["train_phase_train" if split == "train" else split]
        if (path := folder / pattern.format(split, phase=phase)).is_file()
    }


def _packs(folder: Path, split: str) -> list[Path]:
    numbered = sorted(folder.glob(f"{split}_[0-9]*.npz"), key=lambda path: (len(path.name), path))
    return numbered or _files(folder, "{}.npz").get(split, [])


def _source(
    kind: str, folder: Path, list_split: Callable[..., ListedSplit], found: dict[str, list[Path]]
) -> Source:
    def splits(_: object) -> dict[str, ListedSplit]:
        check_unpacked_size([path for paths in found.values() for path in paths])
        return {split: list_split(split, *paths) for split, paths in found.items()}

    return Source(kind, folder, splits)


def _list_csv(_: str, table: Path) -> ListedSplit:
    folder = table.parent / "images"
    rows = read_csv(table, "filename", "label")
    if not rows:
        raise DertsError(f"{table} must have a header filename,label and a row per image: add them")
    files: list[str] = []
    lost: list[str] = []
    for name in (row["filename"].replace("\0", "?") for row in rows):
        path = folder / name
        if path.name != name and not path.resolve().is_relative_to(folder.resolve()):
            wrong = f"{table} names {name!r}, which is outside of images/"
            raise DertsError(f"{wrong}: remove that row")
        (files if path.is_file() else lost).append(name)
    if lost:
        wrong = f"{len(lost):,} of {len(rows):,} images of {table} are not in images/"
        raise DertsError(f"{wrong}, the first is {lost[0]!r}: download them, or remove those rows")
    labels = number_labels([row["label"] for row in rows])
    return ListedSplit(*labels, Images(files, folder))


def _list_pickle(split: str, path: Path) -> ListedSplit:
    fields = load_fields(path)
    pixels = fields.get("image_data", fields.get("data"))
    if not isinstance(pixels, np.ndarray) or not {"class_dict", "labels"} & fields.keys():
        held = ", ".join(fields) or "no dictionary"
        wanted = "image_data with class_dict, or data with labels"
        raise DertsError(f"{path} must hold {wanted}, but holds {held}: use another distribution")
    pixels = _checked_pixels(path, pixels)
    if "class_dict" in fields:
        names = _names_of_class_dict(path, fields["class_dict"], len(pixels))
    else:
        names = [as_text(label) for label in as_list(fields["labels"], path)]
        known = fields.get("catname2label")
        if isinstance(known, dict):
            name_of = {as_text(number): as_text(name) for name, number in known.items()}
            names = [name_of.get(name, name) for name in names]
    return _split_in_memory(split, (path,), pixels, *number_labels(names))


def _names_of_class_dict(path: Path, class_dict: Any, count: int) -> list[str]:
    """The class of each of `count` images, of a dictionary of class name to image numbers."""
    name_of: dict[int, str] = {}
    for name, numbers in class_dict.items() if isinstance(class_dict, dict) else ():
        for number in as_list(numbers, path):
            if not isinstance(number, int) or not 0 <= number < count:
                raise DertsError(f"{path}: class_dict names image {number!r} of {count}: {_AGAIN}")
            name_of[number] = as_text(name)
    if missing := count - len(name_of):
        raise DertsError(f"{path}: {missing:,} images are in no class of class_dict: {_AGAIN}")
    return [name_of[number] for number in range(count)]


def _list_tiered(split: str, path: Path) -> ListedSplit:
    label_path = path.parent / f"{split}_labels.pkl"
    if not label_path.is_file():
        raise DertsError(f"{path.name} is there but {label_path} is not: download it too")
    fields = load_fields(label_path)
    key = "label_specific" if "label_specific" in fields else "labels"
    if key not in fields:
        held = ", ".join(fields) or "no dictionary"
        raise DertsError(f"{label_path} has neither label_specific nor labels but {held}: {_AGAIN}")
    images: list[Pixels] | Pixels
    if path.suffix == ".npz":
        # These arrays were decoded by OpenCV, which puts blue first.
        images = _checked_pixels(path, load_npz(path, "images")[0])[..., ::-1]
    else:
        content = load_pickle(path)
        arrays = content.tolist() if isinstance(content, np.ndarray) else content
        if not isinstance(arrays, list) or not all(
            isinstance(array, np.ndarray) and array.dtype == np.uint8 for array in arrays
        ):
            raise DertsError(f"{path} holds no list of encoded images: {_AGAIN}")
        images = [array.reshape(-1) for array in arrays]
    given = _numbers(fields, key, label_path)
    numbers, first, labels = np.unique(given, return_index=True, return_inverse=True)
    categories = None
    if "label_general" in fields:
        general = _numbers(fields, "label_general", label_path)
        if len(general) != len(given):
            raise DertsError(f"label_general in {label_path} is cut short: {_AGAIN}")
        categories = _names(fields, "label_general_str", general[first], label_path)
    names = _names(fields, "label_specific_str", numbers, label_path)
    # Two kinds of crane are two classes: later ones are numbered.
    again = [names[:place].count(name) for place, name in enumerate(names)]
    classes = tuple(
        f"{name} ({count + 1})" if count else name for name, count in zip(names, again, strict=True)
    )
    return _split_in_memory(split, (path,), images, classes, labels.astype(np.int64), categories)


def _numbers(fields: dict[str, Any], key: str, path: Path) -> NDArray[np.int64]:
    try:
        numbers = np.array(as_list(fields[key], path))
    except ValueError:  # lists of several lengths
        numbers = np.array(None)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise DertsError(f"{key} in {path} is no list of whole numbers: {_AGAIN}")
    return numbers.astype(np.int64)


def _names(
    fields: dict[str, Any], key: str, numbers: NDArray[np.int64], path: Path
) -> tuple[str, ...]:
    """The text of each label number, or the number itself where no texts are given."""
    if fields.get(key) is None:
        return tuple(str(number) for number in numbers.tolist())
    texts = as_list(fields[key], path)
    if not 0 <= numbers.min(initial=0) <= numbers.max(initial=0) < len(texts):
        raise DertsError(f"{key} in {path} has no text for every label: {_AGAIN}")
    return tuple(as_text(texts[number]) for number in numbers.tolist())


def _list_packs(split: str, *paths: Path) -> ListedSplit:
    files: list[Pixels] = []
    names: list[str] = []
    category_of: dict[str, str] = {}
    for path in paths:
        arrays = load_npz(path, "data", "offsets", "labels", "class_names")
        data, offsets, labels, class_names = arrays
        fits = (
            all(array.ndim == 1 for array in arrays)
            and len(offsets) == len(labels) + 1
            and data.dtype == np.uint8
            and offsets.dtype.kind in "iu"
            and labels.dtype.kind in "iu"
            and offsets[0] == 0
            and offsets[-1] == len(data)
            and (offsets[1:] >= offsets[:-1]).all()
            and labels.min(initial=0) >= 0
            and labels.max(initial=0) < max(len(class_names), 1)
        )
        if not fits:
            raise DertsError(f"{path} has offsets or labels out of range or number: {_AGAIN}")
        if _has_categories(path):
            [categories] = load_npz(path, "categories")
            if categories.shape != class_names.shape:
                raise DertsError(f"{path} has no category for every class: {_AGAIN}")
            category_of.update(zip(map(str, class_names), map(str, categories), strict=True))
        names += [str(name) for name in class_names[labels]]
        files += [data[start:end] for start, end in pairwise(offsets.tolist())]
    used, numbers = number_labels(names)
    known = tuple(category_of.get(name, "") for name in used) if category_of else None
    return _split_in_memory(split, paths, files, used, numbers, known)


def _split_in_memory(
    split: str,
    paths: tuple[Path, ...],
    contents: list[Pixels] | Pixels,
    class_names: tuple[str, ...],
    labels: NDArray[np.int64],
    categories: tuple[str, ...] | None = None,
) -> ListedSplit:
    """A split of images (files as uint8 [bytes], or pixels) that were read from these paths."""
    if len(contents) != len(labels):
        wrong = f"split {split!r} has {len(contents):,} images but {len(labels):,} labels"
        raise DertsError(f"{wrong}: download {paths[-1].name} again")
    return ListedSplit(class_names, labels, Images(contents, unnamed="image "), categories, paths)


def _checked_pixels(path: Path, pixels: NDArray[Any]) -> Pixels:
    """An array of the file at `path`, which must be uint8 [n, height, width, 1 or 3]."""
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] not in (1, 3):
        wrong = f"{path.name} holds images as {pixels.dtype} {list(pixels.shape)}"
        raise DertsError(f"{wrong}, not uint8 [n, height, width, 1 or 3]: rebuild it")
    return pixels


def load_npz(path: Path, *names: str) -> list[NDArray[Any]]:
    """Arrays of an .npz, which is not trusted: no pickled objects."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as held:
            found = {name: np.asarray(held[name]) for name in names if name in held}
            only = ", ".join(held.files[:6])
    except Exception as error:  # what a damaged archive raises can be anything
        raise DertsError(f"{path} is no readable .npz ({error}): {_AGAIN}") from error
    for name in names:
        if name not in found:
            raise DertsError(f"{path} has no array {name!r}, only {only}: {_AGAIN}")
    return list(found.values())


def _has_categories(path: Path) -> bool:
    with suppress(Exception), zipfile.ZipFile(path) as archive:  # which may be damaged
        return "categories.npy" in archive.namelist()
    return False
