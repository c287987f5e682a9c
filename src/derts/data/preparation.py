"""From any source to a store: decoded once, in several processes, and restartable."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from derts.data.find import find_source
from derts.data.journal import Journal
from derts.data.source import DEFAULT_FRACTIONS, FileImages, Listing, Source, Split
from derts.data.store import SplitEntry, StoreDescription, describe_store
from derts.data.worker import Job, run_jobs
from derts.data.write import (
    check_destination,
    disk_errors,
    finish_split,
    partial_folder,
    publish,
    remove_folder,
    write_header,
)
from derts.errors import DertsError
from derts.progress import Progress, silent

DEFAULT_SIZE = 84
_CHUNK = 128
_HEADER = 128  # bytes of the .npy header that numpy writes for any shape we have


@dataclass(frozen=True)
class Prepared:
    """What prepare did: the store, and what is worth telling about how it was made."""

    store: StoreDescription
    resumed_images: int = 0
    notes: tuple[str, ...] = ()


def prepare(
    source: Path | str,
    destination: Path | str,
    *,
    size: int | None = None,
    grayscale: bool = False,
    workers: int = 0,
    skip_broken: bool = False,
    overwrite: bool = False,
    seed: int = 0,
    split_fractions: tuple[float, float, float] = DEFAULT_FRACTIONS,
    min_images: int = 1,
    progress: Progress | None = None,
) -> Prepared:
    """Decode a data set's images once into a store that opens at once.

    size             side of the square images, 84 unless told otherwise
    workers          processes; 0 is one per core
    skip_broken      leave broken images out instead of stopping
    split_fractions  train, val and test shares of the classes, where the source has no splits
    min_images       leave out class folders with fewer images

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
    size = DEFAULT_SIZE if size is None else size
    if not 1 <= size <= 4096:
        raise DertsError(f"size {size} is out of range: give a side of 1 to 4096 pixels")
    if workers < 0:
        raise DertsError(f"workers {workers} is negative: give 0 for one per core, or a number")
    if min_images < 1:
        raise DertsError(f"min_images {min_images} is out of range: give 1 or more")
    workers = workers or _cores()
    found = find_source(source)
    if found.kind.startswith(("class", "folder")) and destination.is_relative_to(
        found.path.resolve()
    ):
        raise DertsError(f"{destination} lies inside the source: choose a place outside of it")
    partial = partial_folder(destination)
    with disk_errors(destination):
        (partial / "scratch").mkdir(parents=True, exist_ok=True)
        listing = Listing(partial / "scratch", seed, split_fractions, min_images)
        try:
            splits = found.splits(listing)
            _check_class_sizes(splits, min_images)
            settings = {"size": size, "grayscale": grayscale}
            fingerprint = _fingerprint(found, splits, settings)
            if not overwrite and _is_prepared(destination, fingerprint, skip_broken):
                remove_folder(partial)
                return Prepared(describe_store(destination), notes=("it is prepared already",))
            check_destination(destination, overwrite=overwrite)
        except DertsError:
            if not (partial / "journal").exists():
                remove_folder(partial)
            raise
        work = _Work(destination, partial, splits, size, 1 if grayscale else 3)
        resumed = work.start(fingerprint)
        work.decode(workers, silent if progress is None else progress, resumed)
        notes = work.check_broken(skip_broken)
        if listing.left_out:
            count, first = len(listing.left_out), ", ".join(listing.left_out[:5])
            more = ", …" if count > 5 else ""
            notes.append(
                f"left out {count} classes with fewer than {min_images} images: {first}{more}"
            )
        if resumed:
            notes.insert(0, f"continued: {resumed:,} images were done before")
        entries, left_out = work.finish(silent if progress is None else progress)
        store = StoreDescription(
            destination,
            {"kind": found.kind, "name": found.path.resolve().name},
            settings,
            fingerprint,
            entries,
            left_out,
        )
        remove_folder(partial / "scratch")
        work.journal.path.unlink()
        publish(partial, store)
    return Prepared(store, resumed, tuple(notes))


@dataclass
class _Work:
    destination: Path
    partial: Path
    splits: dict[str, Split]
    size: int
    channels: int
    journal: Journal = field(init=False)

    @property
    def image_bytes(self) -> int:
        return self.size * self.size * self.channels

    @property
    def chunk(self) -> int:
        """Images per job: few enough that a worker's pixels stay below 32 MB."""
        return max(1, min(_CHUNK, 32_000_000 // self.image_bytes))

    def shape(self, count: int) -> tuple[int, int, int, int]:
        return count, self.size, self.size, self.channels

    def start(self, fingerprint: str) -> int:
        """Take up the work of an earlier call, or start over; how many images are done."""
        journal = Journal.open(self.partial / "journal", fingerprint)
        files = {name: self.partial / f"{name}.npy" for name in self.splits}
        if journal is None or not all(file.is_file() for file in files.values()):
            for file in self.partial.glob("*.npy"):
                file.unlink()
            for name, split in self.splits.items():
                with files[name].open("wb") as target:
                    write_header(target, self.shape(len(split.labels)))
                    assert target.tell() == _HEADER
                    target.truncate(_HEADER + len(split.labels) * self.image_bytes)
            journal = Journal(self.partial / "journal")
            journal.path.write_text(fingerprint + "\n", encoding="utf-8")
        self.journal = journal
        return sum(done.count for done in journal.finished.values())

    def decode(self, workers: int, progress: Progress, resumed: int) -> None:
        total = sum(len(split.labels) for split in self.splits.values())
        if total - resumed <= 2 * self.chunk:
            workers = 1  # sooner done than processes are started
        title = "preparing" if not resumed else f"preparing, {resumed:,} images done before"
        with progress(title, total=total - resumed, unit="images") as advance:
            for done in run_jobs(self._jobs(), workers):
                self.journal.add(done)
                advance(done.count, note=done.split)

    def _jobs(self) -> Iterator[Job]:
        for name, split in self.splits.items():
            count = len(split.labels)
            for start in range(0, count, self.chunk):
                if (name, start) not in self.journal.finished:
                    yield Job(
                        name,
                        start,
                        split.images.part(start, min(start + self.chunk, count)),
                        self.size,
                        self.channels,
                        self.partial / f"{name}.npy",
                        _HEADER + start * self.image_bytes,
                    )

    def broken(self) -> dict[str, list[tuple[int, str, str]]]:
        found: dict[str, list[tuple[int, str, str]]] = {name: [] for name in self.splits}
        for done in self.journal.finished.values():
            found[done.split] += done.broken
        return {name: sorted(entries) for name, entries in found.items()}

    def check_broken(self, skip_broken: bool) -> list[str]:
        """Stop at broken images, or say what is left out."""
        broken = [(name, *entry) for name, entries in self.broken().items() for entry in entries]
        if not broken:
            return []
        split, _, name, reason = broken[0]
        first = f"{name} in {split} ({reason})"
        if not skip_broken:
            raise DertsError(
                f"{len(broken):,} of the images cannot be read, the first is {first}: "
                "remove or replace them, or pass skip_broken=True (--skip-broken)"
            )
        return [f"left out {len(broken):,} broken images, the first is {first}"]

    def finish(self, progress: Progress) -> tuple[dict[str, SplitEntry], int]:
        """Close the gaps of broken images, drop classes without any, write labels."""
        entries, left_out = {}, 0
        total = sum(len(split.labels) for split in self.splits.values()) * self.image_bytes
        broken = self.broken()
        with progress("checksums", total=total // 1_000_000, unit="MB") as advance:
            for name, split in self.splits.items():
                keep = np.ones(len(split.labels), dtype=bool)
                keep[[index for index, _, _ in broken[name]]] = False
                left_out += int((~keep).sum())
                if not keep.any():
                    raise DertsError(
                        f"split {name!r} has no image left: add images to it, or remove it"
                    )
                if not keep.all():
                    self._close_gaps(name, keep)
                if isinstance(split.images, FileImages):
                    names = [split.images.names[place] for place in np.flatnonzero(keep)]
                    text = json.dumps(names) + "\n"
                    (self.partial / f"{name}_names.json").write_text(text, encoding="utf-8")
                used, labels = np.unique(split.labels[keep], return_inverse=True)
                classes = tuple(split.class_names[number] for number in used)
                categories = split.categories
                if categories is not None:
                    categories = tuple(categories[number] for number in used)
                entries[name] = finish_split(
                    self.partial, name, labels.astype(np.int64), classes, categories, advance
                )
        return entries, left_out

    def _close_gaps(self, name: str, keep: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        whole, compact = self.partial / f"{name}.npy", self.partial / f"{name}.compact"
        pixels = np.load(whole, mmap_mode="r", allow_pickle=False)
        with compact.open("wb") as file:
            write_header(file, self.shape(int(keep.sum())))
            for start in range(0, len(keep), self.chunk):
                part = slice(start, start + self.chunk)
                file.write(pixels[part][keep[part]].tobytes())
        # From here on the chunks' places are wrong: an interruption must start over.
        self.journal.path.write_text("", encoding="utf-8")
        compact.replace(whole)


def _check_class_sizes(splits: dict[str, Split], min_images: int) -> None:
    """Only folders leave small classes out; other sources are refused if they have any."""
    for name, split in splits.items():
        counts = np.bincount(split.labels, minlength=len(split.class_names))
        small = np.flatnonzero(counts < min_images)
        if len(small):
            raise DertsError(
                f"class {split.class_names[small[0]]!r} of {name!r} has {counts[small[0]]} images, "
                f"fewer than {min_images}: only class folders can leave classes out, unpack it"
            )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _fingerprint(source: Source, splits: dict[str, Split], settings: dict[str, int]) -> str:
    digest = hashlib.sha256(json.dumps([1, source.kind, settings, _CHUNK]).encode())
    for name, split in splits.items():
        head = json.dumps([name, split.class_names, split.categories, len(split.labels)])
        digest.update(head.encode())
        digest.update(split.labels.tobytes())
        for line in split.images.identity():
            digest.update(line.encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


def _is_prepared(destination: Path, fingerprint: str, skip_broken: bool) -> bool:
    try:
        store = describe_store(destination)
    except DertsError:
        return False
    return store.fingerprint == fingerprint and (skip_broken or store.left_out == 0)
