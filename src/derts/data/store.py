"""A prepared store: a folder with one plain .npy of images or features per split.

store.json         format version, kind of items, origin; per split: classes, count, checksums
train.npy          images uint8 [n, size, size, channels] or features float32 [n, d], opened by
                   memory-mapping
train_labels.npy   int64 [n]
train_names.json   the names of the items (the files that images were), where they have some
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from derts.data.table import FeatureTable, ImageTable, Table, describe_items
from derts.errors import DertsError, printable
from derts.files import parse_json, regular, sample_digest
from derts.progress import Advance, Progress, silent

FORMAT, VERSION = "derts-store", 1
SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
REMAKE = "prepare it again with derts data prepare"
HEADER = 128  # bytes of the .npy header that numpy writes for any shape we have
_BLOCK = 16_000_000
_SMALL = 64_000_000  # bytes of an array that is compared with its checksum whenever it is opened


def dtype_of(shape: tuple[int, ...]) -> str:
    """How items of a shape are kept: images as bytes, rows of features as float32."""
    return "|u1" if len(shape) == 3 else "<f4"


@dataclass(frozen=True)
class SplitEntry:
    """What store.json says of one split, under the same names."""

    count: int
    shape: tuple[int, ...]  # of an item
    sha256: str
    labels_sha256: str
    per_class: tuple[int, int]  # fewest and most items of a class
    classes: tuple[str, ...]
    categories: tuple[str, ...] | None
    sample_sha256: str  # of parts of the pixels' file, spread over it
    names_sha256: str  # of the file of names; empty where items have none

    @property
    def bytes(self) -> int:
        return self.count * math.prod(self.shape) * np.dtype(dtype_of(self.shape)).itemsize

    @property
    def kind(self) -> str:
        return "images" if len(self.shape) == 3 else "features"

    @staticmethod
    def from_json(entry: dict[str, Any]) -> SplitEntry:
        """The entry; a KeyError, TypeError or ValueError where it is damaged."""
        low, high = map(int, entry["per_class"])
        categories = entry["categories"]
        return SplitEntry(
            count=int(entry["count"]),
            shape=tuple(map(int, entry["shape"])),
            per_class=(low, high),
            classes=tuple(map(str, entry["classes"])),
            categories=None if categories is None else tuple(map(str, categories)),
            sha256=str(entry["sha256"]),
            labels_sha256=str(entry["labels_sha256"]),
            sample_sha256=str(entry["sample_sha256"]),
            names_sha256=str(entry["names_sha256"]),
        )


@dataclass(frozen=True)
class StoreDescription:
    """What store.json says: splits, where the items came from, and how they were made."""

    path: Path
    origin: dict[str, str]
    settings: dict[str, Any]
    fingerprint: str
    left_out: int
    splits: dict[str, SplitEntry]

    @property
    def kind(self) -> str:
        """What the items of every split are: images or features."""
        return next((entry.kind for entry in self.splits.values()), "images")

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.splits.values())

    def lines(self) -> list[str]:
        """The description as lines to print."""
        origin = " ".join(map(str, self.origin.values()))
        found = [f"{self.path}: from {origin}, {self.bytes / 1e6:,.1f} MB"]
        for split, entry in self.splits.items():
            each = "–".join(map(str, sorted(set(entry.per_class))))
            items = describe_items(entry.count, entry.shape)
            above = len(set(entry.categories or ()))
            more = f", {above} super-categories" if above else ""
            found.append(f"{split}: {items}, {len(entry.classes)} classes of {each}{more}")
        if self.left_out:
            found.append(f"left out: {self.left_out:,} broken images")
        return [printable(line) for line in found]

    def write(self, folder: Path) -> None:
        """Write store.json into a folder."""
        content = {"format": FORMAT, "version": VERSION, "kind": self.kind, **asdict(self)}
        del content["path"]
        text = json.dumps(content, ensure_ascii=False, indent=1)
        (folder / "store.json").write_text(text + "\n", encoding="utf-8")


def describe_store(path: Path | str) -> StoreDescription:
    """What a store holds, from its store.json alone."""
    path = Path(path)
    if not path.exists():
        raise DertsError(f"{path} does not exist: make it with derts data prepare")
    try:
        content = parse_json(regular(path / "store.json").read_text(encoding="utf-8"))
        if (content["format"], content["version"]) != (FORMAT, VERSION):
            format_ = f"{content['format']} version {content['version']}"
            raise ValueError(f"{format_}, this derts reads {FORMAT} version {VERSION}")
        splits = {name: SplitEntry.from_json(one) for name, one in content["splits"].items()}
        for name, entry in splits.items():
            if not SPLIT_NAME.fullmatch(name) or entry.kind != content["kind"]:
                raise ValueError(f"split {name!r} of {entry.kind}")
        return StoreDescription(
            path,
            origin=dict(content["origin"]),
            settings=dict(content["settings"]),
            fingerprint=str(content["fingerprint"]),
            left_out=int(content["left_out"]),
            splits=splits,
        )
    except FileNotFoundError:
        raise DertsError(f"{path} is no prepared store (it has no store.json): {REMAKE}") from None
    except (OSError, KeyError, TypeError, ArithmeticError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DertsError(f"{path / 'store.json'} is damaged ({reason}): {REMAKE}") from error


def _described(source: Path | str) -> StoreDescription | None:
    """What a store holds; None of what is none."""
    return describe_store(source) if (Path(source) / "store.json").is_file() else None


def data_fingerprint(source: str | Path) -> str | None:
    """A digest of all images, labels and classes of a store, by its checksums; else None."""
    if (store := _described(source)) is None:
        return None
    about = {
        name: (split.sha256, split.labels_sha256, split.classes)
        for name, split in sorted(store.splits.items())
    }
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()


def open_store(path: Path | str) -> dict[str, Table]:
    """Every split as an ImageTable or, in a store of features, a FeatureTable; items stay on disk.

    Lengths, headers and labels are checked, and all pixels up to 64 MB; of more, a sample.

    >>> import tempfile, torch
    >>> from derts.data import save_table
    >>> folder = Path(tempfile.mkdtemp()) / "store"
    >>> images = torch.zeros(2, 8, 8, 3, dtype=torch.uint8)
    >>> table = ImageTable(images, torch.tensor([0, 1]), ("a", "b"))
    >>> _ = save_table({"train": table}, folder)
    >>> open_store(folder)
    {'train': ImageTable(train: 2 images 8×8×3, 2 classes, cpu)}
    """
    path = Path(path)
    tables: dict[str, Table] = {}
    for name, entry in describe_store(path).splits.items():
        shape = (entry.count, *entry.shape)
        items = _open_array(path / f"{name}.npy", dtype_of(entry.shape), shape)
        labels = np.array(_open_array(path / f"{name}_labels.npy", "<i8", (entry.count,)))
        _check_sums(path, name, entry, _SMALL)
        table: type[Table] = ImageTable if entry.kind == "images" else FeatureTable
        arrays = torch.from_numpy(items), torch.from_numpy(labels)
        try:
            tables[name] = table(*arrays, entry.classes, name, entry.categories)
        except DertsError as error:
            raise DertsError(f"{path}, split {name!r}: {error}: {REMAKE}") from error
    return tables


def store_settings(source: Path | str) -> dict[str, Any]:
    """How the items of a store were made; nothing where the source is no store."""
    store = _described(source)
    return store.settings if store else {}


def item_names(source: Path | str, split: str) -> list[str] | None:
    """The names of a split's items in a store (images: their files); None where they have none."""
    path, store = Path(source) / f"{split}_names.json", _described(source)
    if store is None or not (entry := store.splits[split]).names_sha256:
        return None
    try:
        content = regular(path).read_bytes()
        found = parse_json(content)
    except (OSError, ValueError) as error:
        raise DertsError(f"{path} cannot be read ({error}): {REMAKE}") from None
    if not isinstance(found, list) or len(found) != entry.count:
        raise DertsError(f"{path} does not name {entry.count} items: {REMAKE}")
    if entry.names_sha256 != hashlib.sha256(content).hexdigest():
        raise DertsError(f"{path} differs from its checksum: {REMAKE}")
    return [str(name) for name in found]


def verify_store(path: Path | str, progress: Progress = silent) -> StoreDescription:
    """Read the whole store and compare it with its checksums; an error names what differs."""
    description = describe_store(path)
    open_store(path)
    with progress("verifying", total=description.bytes // 1_000_000, unit="MB") as advance:
        for name, entry in description.splits.items():
            _check_sums(description.path, name, entry, entry.bytes, advance)
            item_names(path, name)
    return description


def _check_sums(
    path: Path, name: str, entry: SplitEntry, small: int, advance: Advance | None = None
) -> None:
    """Compare a split's arrays with their checksums; pixels of more bytes than `small` by parts."""
    pixels, labels = path / f"{name}.npy", path / f"{name}_labels.npy"
    if entry.bytes <= small:
        same = data_digest(pixels, advance) == entry.sha256
    else:
        same = sample_digest(pixels) == entry.sample_sha256
    if not same or data_digest(labels, advance) != entry.labels_sha256:
        raise DertsError(f"{labels if same else pixels} differs from its checksum: {REMAKE}")


def data_digest(path: Path, advance: Advance | None = None) -> str:
    """The sha256 of an .npy file's values, read block by block; `advance` is told the MB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(HEADER)
        while block := file.read(_BLOCK):
            digest.update(block)
            if advance:
                advance(len(block) // 1_000_000)
    return digest.hexdigest()


def _open_array(path: Path, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    try:
        # Copy on write: torch warns of read-only memory, and nothing must reach the file.
        array = np.load(regular(path), mmap_mode="c", allow_pickle=False)
        if array.dtype != dtype or array.shape != shape:
            found = f"it is {array.dtype} {list(array.shape)}"
            raise ValueError(f"{found} but store.json says {np.dtype(dtype)} {list(shape)}")
        if not array.flags.c_contiguous:
            raise ValueError("its values are in another order than derts writes them")
        if (size := path.stat().st_size) != array.offset + array.nbytes:
            raise ValueError(f"it is {size} bytes long, not {array.offset + array.nbytes}")
        return array  # type: ignore[no-any-return]
    except Exception as error:  # numpy reads the header as Python: any mistake comes through
        reason = "missing" if isinstance(error, FileNotFoundError) else f"damaged ({error})"
        raise DertsError(f"{path} is {reason}: {REMAKE}") from error
