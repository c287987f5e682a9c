"""A prepared store: a folder with one plain .npy of pixels per split and a store.json.

store.json         format version, origin, settings; per split: classes, count, checksums
train.npy          uint8 [n, size, size, channels], opened by memory-mapping
train_labels.npy   int64 [n]
train_names.json   the files that the images were, where they were files
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.progress import Advance, Progress, silent

FORMAT, VERSION = "derts-store", 1
SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_BLOCK = 16_000_000
REMAKE = "prepare it again with derts data prepare"


@dataclass(frozen=True)
class SplitEntry:
    """What store.json says of one split."""

    class_names: tuple[str, ...]
    categories: tuple[str, ...] | None
    count: int
    image_shape: tuple[int, int, int]
    sha256: str
    labels_sha256: str
    per_class: tuple[int, int]  # fewest and most images of a class

    @property
    def bytes(self) -> int:
        height, width, channels = self.image_shape
        return self.count * height * width * channels


@dataclass(frozen=True)
class StoreDescription:
    """What store.json says: splits, where the images came from, and how they were made."""

    path: Path
    origin: dict[str, str]
    settings: dict[str, Any]
    fingerprint: str
    splits: dict[str, SplitEntry]
    left_out: int = 0

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.splits.values())

    def lines(self) -> list[str]:
        """The description as lines to print."""
        origin = " ".join(self.origin.values())
        found = [f"{self.path}: from {origin}, {self.bytes / 1e6:,.1f} MB"]
        for split, entry in self.splits.items():
            low, high = entry.per_class
            shape = "×".join(map(str, entry.image_shape))
            each = f"{low}" if low == high else f"{low}–{high}"
            line = f"{split}: {entry.count:,} images {shape}, {len(entry.class_names)} classes of "
            line += each
            if entry.categories:
                line += f", {len(set(entry.categories))} super-categories"
            found.append(line)
        if self.left_out:
            found.append(f"left out: {self.left_out:,} broken images")
        return found


def describe_store(path: Path | str) -> StoreDescription:
    """What a store holds, from its store.json alone."""
    path = Path(path)
    try:
        content = json.loads((path / "store.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not path.exists():
            raise DertsError(f"{path} does not exist: make it with derts data prepare") from None
        raise DertsError(f"{path} is no prepared store (it has no store.json): {REMAKE}") from None
    except (OSError, ValueError) as error:
        raise DertsError(f"{path / 'store.json'} cannot be read ({error}): {REMAKE}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DertsError(f"{path / 'store.json'} is not of a store of derts: {REMAKE}")
    if content.get("version") != VERSION:
        raise DertsError(
            f"{path} has store version {content.get('version')}, this derts reads {VERSION}: "
            f"{REMAKE}"
        )
    try:
        splits = {name: _parse_entry(name, entry) for name, entry in content["splits"].items()}
        return StoreDescription(
            path,
            dict(content["origin"]),
            dict(content["settings"]),
            str(content["fingerprint"]),
            splits,
            int(content["left_out"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DertsError(
            f"{path / 'store.json'} is damaged ({type(error).__name__}: {error}): {REMAKE}"
        ) from error


def open_store(path: Path | str) -> dict[str, ImageTable]:
    """Every split as an ImageTable whose images uint8 [n, size, size, channels] stay on disk.

    >>> import tempfile, torch
    >>> from derts.data.write import save_table
    >>> folder = Path(tempfile.mkdtemp()) / "store"
    >>> images = torch.zeros(2, 8, 8, 3, dtype=torch.uint8)
    >>> table = ImageTable(images, torch.tensor([0, 1]), ("a", "b"))
    >>> _ = save_table({"train": table}, folder)
    >>> open_store(folder)
    {'train': ImageTable(train: 2 images 8×8×3, 2 classes, cpu)}
    """
    description = describe_store(path)
    return {name: _open_split(Path(path), name, e) for name, e in description.splits.items()}


def image_names(source: Path | str, split: str) -> list[str] | None:
    """The file names of a split's images in a store; None where they were no files."""
    path = Path(source) / f"{split}_names.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise DertsError(f"{path} cannot be read ({error}): {REMAKE}") from None
    wanted = describe_store(source).splits[split].count
    if not isinstance(found, list) or len(found) != wanted:
        raise DertsError(f"{path} does not name {wanted} images: {REMAKE}")
    return [str(name) for name in found]


def verify_store(path: Path | str, progress: Progress | None = None) -> StoreDescription:
    """Read the whole store and compare it with its checksums; an error names what differs."""
    path = Path(path)
    description = describe_store(path)
    tables = open_store(path)
    show = silent if progress is None else progress
    with show("verifying", total=description.bytes // 1_000_000, unit="MB") as advance:
        for name, entry in description.splits.items():
            pixels = data_digest(path / f"{name}.npy", advance)
            labels = data_digest(path / f"{name}_labels.npy")
            for file, found, wanted in (
                (f"{name}.npy", pixels, entry.sha256),
                (f"{name}_labels.npy", labels, entry.labels_sha256),
            ):
                if found != wanted:
                    raise DertsError(f"{path / file} differs from its checksum: {REMAKE}")
            if per_class(tables[name].labels.numpy(), len(entry.class_names)) != entry.per_class:
                raise DertsError(f"{path}: images per class of {name!r} differ: {REMAKE}")
    return description


def data_digest(path: Path, advance: Advance | None = None) -> str:
    """The sha256 of an .npy file's values, read block by block."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        while block := file.read(_BLOCK):
            digest.update(block)
            if advance is not None:
                advance(len(block) // 1_000_000)
    return digest.hexdigest()


def per_class(labels: NDArray[np.int64], classes: int) -> tuple[int, int]:
    """The fewest and the most images that a class has.

    >>> per_class(np.array([0, 0, 1]), 2)
    (1, 2)
    """
    counts = np.bincount(labels, minlength=classes)
    return int(counts.min(initial=len(labels))), int(counts.max(initial=0))


def _open_split(path: Path, name: str, entry: SplitEntry) -> ImageTable:
    images = _open_array(path / f"{name}.npy", "|u1", (entry.count, *entry.image_shape))
    labels = _open_array(path / f"{name}_labels.npy", "<i8", (entry.count,))
    try:
        return ImageTable(
            torch.from_numpy(images),
            torch.from_numpy(np.array(labels)),
            entry.class_names,
            name,
            entry.categories,
        )
    except DertsError as error:
        raise DertsError(f"{path}, split {name!r}: {error}: {REMAKE}") from error


def _open_array(path: Path, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    try:
        # Copy on write: torch warns of read-only memory, and nothing must reach the file.
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except FileNotFoundError:
        raise DertsError(f"{path} is missing: {REMAKE}") from None
    except Exception as error:  # numpy reads the header as Python: any mistake comes through
        raise DertsError(f"{path} is cut short or damaged ({error}): {REMAKE}") from error
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
        found = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else "archive"
        raise DertsError(
            f"{path} is {found} but store.json says {np.dtype(dtype)} {list(shape)}: {REMAKE}"
        )
    return array


def _parse_entry(name: str, entry: dict[str, Any]) -> SplitEntry:
    if not SPLIT_NAME.fullmatch(name):
        raise ValueError(f"split name {name!r}")
    height, width, channels = (int(side) for side in entry["shape"])
    classes = tuple(str(text) for text in entry["classes"])
    categories = entry["categories"]
    if categories is not None:
        categories = tuple(str(text) for text in categories)
        if len(categories) != len(classes):
            raise ValueError("categories and classes differ in number")
    low, high = (int(number) for number in entry["per_class"])
    return SplitEntry(
        classes,
        categories,
        int(entry["count"]),
        (height, width, channels),
        str(entry["sha256"]),
        str(entry["labels_sha256"]),
        (low, high),
    )
