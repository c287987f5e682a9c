"""From any data set to a store: decoded once, and restartable."""

import hashlib
import json
import os
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from derts.data import folders
from derts.data.decode import Broken, decode_all
from derts.data.opening import find_source
from derts.data.sources import DEFAULT_FRACTIONS, ListedSplit, Listing, Source
from derts.data.store import HEADER, SplitEntry, StoreDescription, describe_store
from derts.data.store_writing import (
    SplitContent,
    check_destination,
    disk_errors,
    finish_split,
    publish,
)
from derts.errors import DertsError
from derts.files import parse_json
from derts.progress import Progress, silent


@dataclass(frozen=True)
class Prepared:
    """The store that prepare made, and what is worth telling of it."""

    store: StoreDescription
    resumed_images: int = 0
    notes: tuple[str, ...] = ()


def prepare(
    source: Path | str,
    destination: Path | str,
    *,
    size: int = 84,
    grayscale: bool = False,
    workers: int = 0,
    skip_broken: bool = False,
    overwrite: bool = False,
    seed: int = 0,
    split_fractions: tuple[float, float, float] = DEFAULT_FRACTIONS,
    min_images: int = 1,
    class_level: int = 0,
    progress: Progress = silent,
) -> Prepared:
    """Decode a data set's images once into a store that opens at once.

    size             side of the square images
    workers          threads; 0 is one per core, at most 16
    skip_broken      leave broken images out instead of stopping
    split_fractions  train, val and test shares of the classes, where the source has no splits
    min_images       leave out class folders with fewer images
    class_level      how many folders down a class is: 2 for animals/cat (0: 1, if that is clear)

    What an interrupted call has finished, a second one with the same arguments keeps.

    >>> import tempfile
    >>> from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("cat", "cow", "dog"):
    ...     (folder / "photos" / name).mkdir(parents=True)
    ...     Image.new("RGB", (40, 30)).save(folder / "photos" / name / "a.png")
    >>> prepare(folder / "photos", folder / "store", size=8, workers=1).store.lines()[1]
    'train: 1 images 8×8×3, 1 classes of 1'
    """
    destination = Path(os.path.abspath(destination))
    for name, value, low, high in (
        ("size", size, 1, 4096),
        ("workers", workers, 0, 1000),
        ("min_images", min_images, 1, 10**9),
        ("class_level", class_level, 0, 100),
    ):
        if not low <= value <= high:
            raise DertsError(f"{name} {value} is out of range: give {low} to {high:,}")
    found = find_source(source)
    is_folder = found.kind in (folders.SPLIT_FOLDERS, folders.CLASS_FOLDERS)
    if is_folder and destination.is_relative_to(found.path.resolve()):
        raise DertsError(f"{destination} lies inside the source: choose a place outside of it")
    if (min_images > 1 or class_level) and not is_folder:
        raise DertsError("min_images and class_level are for class folders: leave them out")
    listing = Listing(seed, split_fractions, min_images, class_level)  # notes what it leaves out
    with disk_errors(destination):
        splits = found.list_splits(listing)
        settings = {"size": size, "grayscale": grayscale}
        fingerprint = _fingerprint(found, splits, settings)
        with suppress(DertsError):  # whatever is there is no such store
            store = describe_store(destination)
            same = store.fingerprint == fingerprint and (skip_broken or not store.left_out)
            if same and not overwrite:
                notes = ["it is prepared already", *folders.left_out_notes(listing)]
                return Prepared(store, notes=tuple(notes))
        check_destination(destination, overwrite=overwrite)
        partial = destination.with_name(destination.name + ".partial")
        partial.mkdir(parents=True, exist_ok=True)
        work = _Preparation(partial, splits, size, 1 if grayscale else 3)
        resumed = work.resume(fingerprint)
        work.decode(workers, progress)
        notes = [f"continued: {resumed:,} images were done before"] if resumed else []
        left_out = sum(map(len, work.broken.values()))
        if left_out:
            split = next(split for split in splits if work.broken[split])
            _, name, reason = work.broken[split][0]
            told = f"the first is {name} in {split} ({reason})"
            if not skip_broken:
                fix = "remove or replace them, or pass skip_broken=True (--skip-broken)"
                raise DertsError(f"{left_out:,} of the images cannot be read, {told}: {fix}")
            notes.append(f"left out {left_out:,} broken images, {told}")
        notes += folders.left_out_notes(listing)
        entries = work.finish()
        origin = {"kind": found.kind, "name": found.path.resolve().name}
        store = StoreDescription(destination, origin, settings, fingerprint, left_out, entries)
        work.journal.unlink()
        publish(partial, store)
    return Prepared(store, resumed, tuple(notes))


@dataclass
class _Preparation:
    """An unfinished store: per split, the pixels of the images that are done, in order.

    Its journal has a line with the fingerprint of the work, then a JSON line per finished range
    of images: split, how many, and which of them are broken.
    """

    partial: Path
    splits: dict[str, ListedSplit]
    size: int
    channels: int
    done: Counter[str] = field(default_factory=Counter)
    broken: defaultdict[str, list[Broken]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.journal = self.partial / "journal"
        self.pixels = {split: self.partial / f"{split}.npy" for split in self.splits}

    def length(self, split: str) -> int:
        """Bytes of the file of a split's pixels, so far."""
        count = self.done[split] - len(self.broken[split])
        return HEADER + count * self.size * self.size * self.channels

    def resume(self, fingerprint: str) -> int:
        """Take up the work of an earlier call, or start over; how many images are done."""
        try:
            lines = self.journal.read_text(encoding="utf-8").split("\n")[:-1]
            if lines[:1] != [fingerprint]:
                raise ValueError("the journal of other work")
            for line in lines[1:]:
                split, count, broken = parse_json(line)
                self.done[split] += count
                self.broken[split] += map(tuple, broken)
            if any(file.stat().st_size < self.length(s) for s, file in self.pixels.items()):
                raise ValueError("pixels are missing")
        except (OSError, ValueError):
            lines = [fingerprint]
            self.done.clear()
            self.broken.clear()
            for file in (*self.partial.glob("*.npy"), *self.partial.glob("*.json")):
                file.unlink()
        self.journal.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        for split, file in self.pixels.items():
            with file.open("ab") as target:
                target.truncate(self.length(split))  # without what the journal does not know
        return self.done.total()

    def decode(self, workers: int, progress: Progress) -> None:
        """Decode what is left."""
        left = sum(map(len, self.splits.values())) - self.done.total()
        with progress("preparing", total=left, unit="images") as advance:
            for name, split in self.splits.items():
                start, shape = self.done[name], (self.size, self.channels)
                for whole, pixels, broken in decode_all(split.images, start, *shape, workers):
                    count = len(whole) + len(broken)
                    with self.pixels[name].open("ab") as file:
                        file.write(pixels.tobytes())
                    with self.journal.open("a", encoding="utf-8") as file_of_lines:
                        file_of_lines.write(json.dumps([name, count, broken]) + "\n")
                    self.done[name] += count
                    self.broken[name] += broken
                    advance(count, note=name)

    def finish(self) -> dict[str, SplitEntry]:
        """Write headers, labels and names; every class must have an image left."""
        entries = {}
        for name, split in self.splits.items():
            if not len(split):
                raise DertsError(f"split {name!r} has no image: add some, or remove it")
            kept = np.delete(np.arange(len(split)), [index for index, *_ in self.broken[name]])
            left = set(split.labels[kept].tolist())
            for index, file, reason in self.broken[name]:
                if (label := int(split.labels[index])) not in left:
                    lost = f"class {split.class_names[label]!r} in {name} has no image left"
                    raise DertsError(f"{lost} ({file}: {reason}): replace its images, or remove it")
            images = split.images
            names = [images.name(index) for index in kept.tolist()] if images.root else None
            shape, labels = (
                (self.size, self.size, self.channels),
                torch.from_numpy(split.labels[kept]),
            )
            about = split.class_names, split.categories, names
            content = SplitContent((), shape, labels, *about)  # its pixels are written already
            entries[name] = finish_split(self.partial, name, content)
        return entries


def _fingerprint(source: Source, splits: dict[str, ListedSplit], settings: dict[str, int]) -> str:
    digest = hashlib.sha256(json.dumps([source.kind, settings]).encode())
    for name, split in splits.items():
        head = json.dumps([name, split.class_names, split.categories, len(split)])
        digest.update(head.encode())
        digest.update(split.labels.tobytes())
        for line in split.identity():
            digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()
