"""Class folders: train/, val/ and test/ with a folder per class, or one folder of classes."""

import os
from collections import Counter
from collections.abc import Sequence, Sized
from functools import cache, partial
from pathlib import Path

import numpy as np
from PIL import Image

from derts.data.decode import Images, formats
from derts.data.sources import SPLITS, ListedSplit, Listing, Source
from derts.errors import DertsError

SPLIT_FOLDERS, CLASS_FOLDERS = "class folders", "folder of classes"  # kinds of a Source
_SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "validation", "valid"),
    "test": ("test", "testing"),
}
_UNREAD = {
    "HEIC": "heic heics heif heifs hif",
    "RAW": "3fr arw cr2 cr3 crw dng iiq nef nrw orf pef raf raw rw2 sr2 srw x3f",
    "AVIF": "avif",
    "JPEG XL": "jxl",
    "SVG": "svg",
}
"""Endings of photographs that are not read; Pillow knows more, and some that are no photographs."""
_NO_PHOTOGRAPHS = frozenset({".pdf", ".eps", ".ps", ".mpg", ".mpeg", ".h5", ".hdf"})
Photographs = tuple[list[str], Counter[str]]
"""Paths of images, sorted; how many there are of each kind that is not read."""


def detect(path: Path) -> Source | None:
    """The source in `path`, if it holds class folders with at least one image."""
    splits = {
        split: path / name
        for split, names in _SPLIT_NAMES.items()
        for name in reversed(names)  # of several the first
        if (path / name).is_dir() and folders_in(path / name)
    }
    if "train" in splits or len(splits) > 1:
        return Source(SPLIT_FOLDERS, path, partial(_list, splits))
    if any(any(photographs(folder)) for folder in folders_in(path)):
        return Source(CLASS_FOLDERS, path, partial(_list, {"": path}))
    return None


def split_by_class(
    class_names: list[str], fractions: tuple[float, float, float], seed: int, left_out: Sized = ()
) -> dict[str, list[str]]:
    """Classes shared out to train, val and test by a seeded draw, at least one to each."""
    count = len(class_names)
    if count < len(SPLITS):
        few = f"{count} classes cannot be split into train, val and test"
        fix = f"{few}: add classes, or make the folders train/, val/ and test/ yourself"
        by_size = f"{few}, {len(left_out)} are left out: lower --min-images"
        raise DertsError(by_size if left_out else fix)
    if not (min(fractions) > 0 and abs(sum(fractions) - 1) <= 1e-6):  # nan is refused too
        raise DertsError(f"split fractions are {fractions}: each must be above 0 and their sum 1")
    wanted = [max(1, round(count * fraction)) for fraction in fractions]
    while sum(wanted) != count:
        step = 1 if sum(wanted) < count else -1
        # The split that is furthest from its share gives or takes, but none is left empty.
        able = [place for place, have in enumerate(wanted) if have + step >= 1]
        furthest = max(able, key=lambda place: step * (count * fractions[place] - wanted[place]))
        wanted[furthest] += step
    order = np.random.default_rng(seed).permutation(count)
    parts = zip(SPLITS, np.split(order, np.cumsum(wanted)[:-1]), strict=True)
    return {split: sorted(class_names[place] for place in part) for split, part in parts}


def _list(folders: dict[str, Path], listing: Listing) -> dict[str, ListedSplit]:
    """A split of each folder, or, where the one folder is of no split, its classes shared out."""
    found = {}
    for split, folder in folders.items():
        classes = _list_classes(folder, listing)
        if split and not classes:
            lacks = f"has no class folder with {listing.min_images} images or more"
            fix = "lower --min-images, add some," if listing.left_out else "add some,"
            raise DertsError(f"{folder} {lacks}: {fix} or remove it")
        shares = {split: list(classes)}
        if not split:
            how = listing.split_fractions, listing.seed, listing.left_out
            shares = split_by_class(sorted(classes), *how)
        for share, names in shares.items():
            labels = np.repeat(np.arange(len(names)), [len(classes[name]) for name in names])
            files = [file for name in names for file in classes[name]]
            found[share] = ListedSplit(tuple(names), labels, Images(files, folder))
    return found


def _list_classes(folder: Path, listing: Listing) -> dict[str, list[str]]:
    """Per class that has enough images, sorted: their paths relative to the folder."""
    above, classes = [folder], folders_in(folder)
    if not listing.class_level:
        _check_level(classes)
    for _ in range(1, listing.class_level):
        above += classes
        classes = [inner for one in classes for inner in folders_in(one)]
    for name in (child.name for one in above for child in one.iterdir()):
        if kind := _kind(name):
            listing.unread[kind] += 1
        elif kind is not None:
            listing.loose.append(name)
    listed = {}
    for one in classes:
        name = one.relative_to(folder).as_posix()
        listed[name], unread = list_class(one, name, folder)
        listing.unread.update(unread)
    if not any(listed.values()):
        names = [Path(name) for name in photographs(folder)[0]]
        deepest = max(names, key=lambda name: len(name.parts), default=Path())
        if most := len(deepest.parent.parts):
            fix = f"give --class-level {' or '.join(map(str, range(1, most + 1)))}"
            wrong = f"{folder} has no folder of images at level {listing.class_level}"
            raise DertsError(f"{wrong}: the deepest holds {deepest.as_posix()}; {fix}")
    few = [name for name, files in listed.items() if 0 < len(files) < listing.min_images]
    listing.left_out.extend(few)
    return {name: files for name, files in listed.items() if files and name not in few}


def _check_level(classes: Sequence[Path]) -> None:
    """Refuse a folder that may be a class, or a category of classes: nobody said which."""
    for one in classes:
        level, inner = 1, [one]
        while len(inner) == 1:
            place, level = inner[0], level + 1
            inner = [folder for folder in folders_in(place) if photographs(folder)[0]]
        if inner:
            names = [folder.relative_to(one.parent).as_posix() for folder in inner]
            found = f"{place} holds {len(inner)} folders of images ({_first(names, 3)})"
            fix = f"--class-level 1 for {one.name!r} or --class-level {level} for {names[0]!r}"
            raise DertsError(f"{found}: say which are the classes, with {fix}")


def _first(names: Sequence[str], count: int) -> str:
    return ", ".join(names[:count]) + (", …" if len(names) > count else "")


def photographs(folder: Path, root: Path | None = None) -> Photographs:
    """Those in a folder and below it, paths relative to the root (the folder itself: None)."""
    images, unread = [], Counter[str]()
    for parent, folders, files in os.walk(folder):  # without links to folders
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if kind := _kind(name):
                unread[kind] += 1
            elif kind is not None:  # a link to nowhere, too, and reading it will say so
                images.append(Path(parent, name).relative_to(root or folder).as_posix())
    return sorted(images), unread


def list_class(folder: Path, name: str, root: Path | None = None) -> Photographs:
    """The photographs of a class; an error if there are only such as are not read."""
    images, unread = photographs(folder, root)
    if not images and unread:
        raise DertsError(f"class {name!r} has no image that can be read: {unread_note(unread)}")
    return images, unread


def left_out_notes(listing: Listing) -> list[str]:
    """What of a source is not in the store, as lines to print."""
    left = (
        (listing.left_out, f"classes with fewer than {listing.min_images} images"),
        (listing.loose, "images that lie in no class folder"),
    )
    notes = [f"left out {len(names):,} {what}: {_first(names, 5)}" for names, what in left if names]
    return notes + ([unread_note(listing.unread)] if listing.unread else [])


def unread_note(unread: Counter[str]) -> str:
    """What is not read, how much of it, and what to do: a line."""
    said = []
    for kind, count in sorted(unread.items()):
        fix = ", or install pillow-heif" if kind == "HEIC" else " to JPEG"
        files, them = ("1 file is", "it") if count == 1 else (f"{count:,} files are", "them")
        said.append(f"{files} {kind}, which is not read: convert {them}{fix}")
    return "; ".join(said)


def _kind(name: str) -> str | None:
    """Of a photograph the format if it is not read, else "", by its ending; None of other files."""
    return None if name.startswith(".") else _kinds().get(os.path.splitext(name)[1].lower())


@cache
def _kinds() -> dict[str, str]:
    read = formats()
    known = Image.registered_extensions()
    kinds = {ending: ending[1:].upper() for ending in known if ending not in _NO_PHOTOGRAPHS}
    kinds |= {f".{ending}": kind for kind, text in _UNREAD.items() for ending in text.split()}
    return kinds | {ending: "" for ending, kind in known.items() if kind in read}


def folders_in(path: Path) -> list[Path]:
    """The folders in a folder, sorted, without hidden ones and links back to where we came from."""
    here = path.resolve()
    return sorted(
        child
        for child in path.iterdir()
        if not child.name.startswith(".")
        and child.is_dir()
        and not (child.is_symlink() and here.is_relative_to(child.resolve()))
    )
