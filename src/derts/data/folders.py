"""Class folders: train/, val/ and test/ with a folder per class, or one folder of classes."""

from __future__ import annotations

import os
from functools import cache, partial
from pathlib import Path

import numpy as np
from PIL import Image

from derts.data.sources import SPLITS, ListedSplit, Listing, Source, split_of_files
from derts.errors import DertsError

_SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "validation", "valid"),
    "test": ("test", "testing"),
}


def detect(path: Path) -> Source | None:
    """The source in `path`, if it holds class folders with at least one image."""
    splits = _split_folders(path)
    if splits:
        return Source("class folders", path, partial(_list_splits, splits))
    if any(_is_image_name(n) for f in _folders(path) for _, _, names in os.walk(f) for n in names):
        return Source("folder of classes", path, partial(_split_classes, path))
    return None


def split_by_class(
    class_names: list[str], fractions: tuple[float, float, float], seed: int
) -> dict[str, list[str]]:
    """Classes shared out to train, val and test by a seeded draw, at least one to each.

    >>> {split: len(names) for split, names in
    ...  split_by_class(list("abcdefghij"), (0.64, 0.16, 0.2), seed=0).items()}
    {'train': 6, 'val': 2, 'test': 2}
    """
    count = len(class_names)
    if count < len(SPLITS):
        fix = "add classes, or make the folders train/, val/ and test/ yourself"
        raise DertsError(f"{count} classes cannot be split into train, val and test: {fix}")
    if not (min(fractions) >= 0 and abs(sum(fractions) - 1) <= 1e-6):  # nan is refused too
        raise DertsError(f"split fractions {fractions} must sum to 1, such as 0.64 0.16 0.2")
    wanted = [max(1, round(count * fraction)) for fraction in fractions]
    while sum(wanted) != count:
        step = 1 if sum(wanted) < count else -1
        # The split that is furthest from its share gives or takes, but none is left empty.
        errors = [
            (step * (count * fraction - have), -place)
            for place, (fraction, have) in enumerate(zip(fractions, wanted, strict=True))
            if have + step >= 1
        ]
        wanted[-max(errors)[1]] += step
    order = np.random.default_rng(seed).permutation(count).tolist()
    chosen: dict[str, list[str]] = {}
    for split, size in zip(SPLITS, wanted, strict=True):
        chosen[split] = sorted(class_names[place] for place in order[:size])
        order = order[size:]
    return chosen


def _list_splits(folders: dict[str, Path], listing: Listing) -> dict[str, ListedSplit]:
    splits: dict[str, ListedSplit] = {}
    for split, folder in folders.items():
        found = _list_classes(folder, listing)
        if not found:
            least = f"{listing.min_images} images" if listing.min_images > 1 else "an image"
            raise DertsError(f"{folder} has no class folder with {least}: add some, or remove it")
        splits[split] = _as_split(folder, found)
    return splits


def _split_classes(folder: Path, listing: Listing) -> dict[str, ListedSplit]:
    found = _list_classes(folder, listing)
    chosen = split_by_class(sorted(found), listing.split_fractions, listing.seed)
    return {
        split: _as_split(folder, {name: found[name] for name in names})
        for split, names in chosen.items()
    }


def _as_split(folder: Path, classes: dict[str, list[tuple[str, int]]]) -> ListedSplit:
    labels = np.repeat(np.arange(len(classes)), [len(files) for files in classes.values()])
    files = [file for class_files in classes.values() for file in class_files]
    return split_of_files(folder, files, tuple(classes), labels.astype(np.int64))


def _list_classes(folder: Path, listing: Listing) -> dict[str, list[tuple[str, int]]]:
    """Per class that has enough images, sorted: (path relative to the folder, size in bytes)."""
    listed = {child.name: list_images(child, folder) for child in _folders(folder)}
    few = [name for name, files in listed.items() if 0 < len(files) < listing.min_images]
    listing.left_out.extend(few)
    return {name: files for name, files in listed.items() if files and name not in few}


def list_images(folder: Path, root: Path) -> list[tuple[str, int]]:
    """Image files in a folder and those below it: (path relative to root, bytes), sorted.

    Symbolic links to folders are not followed further down, so that a loop does no harm.
    """
    found = []
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(parent) / name for name in files if _is_image_name(name)):
            # A link to nowhere counts, and reading it will say so.
            size = path.stat().st_size if path.exists() else 0
            found.append((path.relative_to(root).as_posix(), size))
    return sorted(found)


def _is_image_name(name: str) -> bool:
    """Whether Pillow knows the ending and the file is not a hidden one."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in _endings()


@cache
def _endings() -> frozenset[str]:
    # .pdf, .eps, .mpg and the like are registered too, and are no photographs.
    return frozenset(Image.registered_extensions()) - {".pdf", ".eps", ".ps", ".mpg", ".mpeg"}


def _folders(path: Path) -> list[Path]:
    """The folders in a folder, sorted, without hidden ones and links back to where we came from."""
    here = path.resolve()
    return sorted(
        child
        for child in path.iterdir()
        if not child.name.startswith(".")
        and child.is_dir()
        and not (child.is_symlink() and here.is_relative_to(child.resolve()))
    )


def _split_folders(path: Path) -> dict[str, Path]:
    """The folders named after splits, where they hold folders themselves."""
    found = {}
    for split, names in _SPLIT_NAMES.items():
        for name in names:
            if split not in found and (path / name).is_dir() and _folders(path / name):
                found[split] = path / name
    return found if "train" in found or len(found) > 1 else {}
