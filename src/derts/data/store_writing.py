"""Writing a store: beside its place first, and moved there in one step when complete."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor

from derts.data.store import HEADER, SPLIT_NAME, SplitEntry, StoreDescription, data_digest, dtype_of
from derts.data.table import Table
from derts.errors import DISK_FULL, DertsError
from derts.files import sample_digest


@dataclass(frozen=True)
class SplitContent:
    """What is to be written of a split: its items in blocks, as they are read.

    Images are uint8 [any number, height, width, channels], features float32 [any number, d].
    """

    blocks: Iterable[Tensor]
    item_shape: tuple[int, ...]  # (height, width, channels), or (d,)
    labels: Tensor
    class_names: tuple[str, ...]
    categories: tuple[str, ...] | None = None
    names: Sequence[str] | None = None  # one per item, where they have some

    @classmethod
    def of(cls, table: Table, names: Sequence[str] | None = None) -> Self:
        """A table's items as they are."""
        return cls(
            table.items.split(512), table.item_shape, table.labels, table.class_names,
            table.categories, names,
        )  # fmt: skip


def save_table(
    tables: Mapping[str, Table], destination: Path | str, *, overwrite: bool = False
) -> StoreDescription:
    """Write tables as a store that open_store reads; the keys are the names of the splits."""
    contents = {name: SplitContent.of(table) for name, table in tables.items()}
    origin = {"kind": "tables", "name": Path(destination).name}
    return write_store(contents, Path(destination), origin, overwrite=overwrite)


def write_store(
    contents: Mapping[str, SplitContent],
    destination: Path,
    origin: dict[str, str],
    *,
    settings: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    beside: Mapping[str, bytes] | None = None,
) -> StoreDescription:
    """Write splits as a store, with `settings` (how the items were made) and files `beside`."""
    check_destination(destination, overwrite=overwrite)
    if not contents:
        raise DertsError("no table to save: give a dictionary of split name to table")
    # Of this process alone: several may write the same cache.
    partial = destination.with_name(f"{destination.name}.{os.getpid()}.partial")
    try:
        with disk_errors(destination):
            partial.mkdir(parents=True)
            entries = {name: _write_split(partial, name, split) for name, split in contents.items()}
            for name, content in (beside or {}).items():
                (partial / name).write_bytes(content)
            digests = "".join(entry.sha256 + entry.labels_sha256 for entry in entries.values())
            fingerprint = hashlib.sha256(digests.encode()).hexdigest()
            description = StoreDescription(
                destination, origin, dict(settings or {}), fingerprint, left_out=0, splits=entries
            )
            publish(partial, description)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return description


def _write_split(folder: Path, name: str, split: SplitContent) -> SplitEntry:
    if not SPLIT_NAME.fullmatch(name):
        raise DertsError(f"split name {name!r} must be letters, digits, - and _: rename it")
    with (folder / f"{name}.npy").open("wb") as file:
        file.write(bytes(HEADER))
        for block in split.blocks:
            if block.is_floating_point() and not bool(block.isfinite().all()):
                raise DertsError(f"features of split {name!r} are not all finite: repair them")
            file.write(block.contiguous().cpu().numpy().tobytes())
    return finish_split(folder, name, split)


def check_destination(destination: Path, *, overwrite: bool) -> None:
    """Refuse a place that is taken: by a store unless overwrite, by anything else always."""
    if destination.is_dir() and not any(destination.iterdir()):
        destination.rmdir()
    if not destination.exists():
        return
    if not (destination / "store.json").is_file():
        raise DertsError(f"{destination} exists and is no store: choose another destination")
    if not overwrite:
        fix = "choose another destination, or pass overwrite=True (--overwrite)"
        raise DertsError(f"{destination} holds a store already: {fix}")


@contextmanager
def disk_errors(destination: Path) -> Iterator[None]:
    """Say a full disk, a forbidden place and the like as a DertsError."""
    try:
        yield
    except OSError as error:
        place = error.filename or destination
        if error.errno in DISK_FULL:
            said = f"the disk of {destination} is full: free some space or choose another place"
        elif str(place).startswith(str(destination)):
            said = f"cannot write {place} ({error.strerror}): choose another destination"
        else:
            said = f"cannot read {place} ({error.strerror}): make it readable"
        raise DertsError(f"{said}, then run the same command to continue") from error


def finish_split(folder: Path, name: str, split: SplitContent) -> SplitEntry:
    """Write header, labels and names to the items of a split, which are there; describe all."""
    items, label_path = folder / f"{name}.npy", folder / f"{name}_labels.npy"
    labels, classes = split.labels.numpy(), split.class_names
    shape, descr = (len(labels), *split.item_shape), dtype_of(split.item_shape)
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    with items.open("r+b") as file:
        np.lib.format.write_array_header_1_0(file, header)
    np.save(label_path, labels.astype("<i8"), allow_pickle=False)
    names = b"" if split.names is None else (json.dumps(list(split.names)) + "\n").encode()
    if names:
        (folder / f"{name}_names.json").write_bytes(names)
    counts = np.bincount(labels, minlength=len(classes))
    return SplitEntry(
        count=len(labels),
        shape=split.item_shape,
        sha256=data_digest(items),
        labels_sha256=data_digest(label_path),
        per_class=(int(counts.min(initial=len(labels))), int(counts.max(initial=0))),
        classes=classes,
        categories=split.categories,
        sample_sha256=sample_digest(items),
        names_sha256=hashlib.sha256(names).hexdigest() if names else "",
    )


def publish(partial: Path, description: StoreDescription) -> None:
    """Write store.json and move the finished folder to its place, over an older store."""
    description.write(partial)
    for file in partial.iterdir():  # a power cut must not leave names without their content
        with file.open("r+b") as held:
            os.fsync(held.fileno())
    destination = description.path
    old = destination.with_name(destination.name + ".old")
    if destination.exists():
        shutil.rmtree(old, ignore_errors=True)
        destination.rename(old)
    partial.rename(destination)
    shutil.rmtree(old, ignore_errors=True)
