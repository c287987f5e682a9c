"""Writing a store: beside its place first, and moved there in one step when complete."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from derts.data.store import (
    FORMAT,
    SPLIT_NAME,
    VERSION,
    SplitEntry,
    StoreDescription,
    data_digest,
    describe_store,
    per_class,
)
from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.progress import Advance


def save_table(
    tables: Mapping[str, ImageTable], destination: Path | str, *, overwrite: bool = False
) -> StoreDescription:
    """Write tables as a store that open_store reads; the keys are the names of the splits."""
    destination = Path(destination)
    check_destination(destination, overwrite=overwrite)
    if not tables:
        raise DertsError("no table to save: give a dictionary of split name to ImageTable")
    partial = partial_folder(destination)
    with disk_errors(destination):
        remove_folder(partial)
        partial.mkdir(parents=True)
        entries = {name: _save_split(partial, name, table) for name, table in tables.items()}
        digests = "".join(entry.sha256 + entry.labels_sha256 for entry in entries.values())
        fingerprint = hashlib.sha256(digests.encode()).hexdigest()
        description = StoreDescription(
            destination, {"kind": "tables", "name": destination.name}, {}, fingerprint, entries
        )
        publish(partial, description)
    return description


def _save_split(folder: Path, name: str, table: ImageTable) -> SplitEntry:
    if not SPLIT_NAME.fullmatch(name):
        raise DertsError(f"split name {name!r} must be letters, digits, - and _: rename it")
    with (folder / f"{name}.npy").open("wb") as file:
        write_header(file, (len(table), *table.image_shape))
        for block in table.images.split(512):
            file.write(block.contiguous().cpu().numpy().tobytes())
    return finish_split(folder, name, table.labels.numpy(), table.class_names, table.categories)


def check_destination(destination: Path, *, overwrite: bool) -> None:
    """Refuse a place that is taken: by a store unless overwrite, by anything else always."""
    if destination.is_dir() and not any(destination.iterdir()):
        destination.rmdir()
    if not destination.exists():
        return
    try:
        describe_store(destination)
    except DertsError:
        if not (destination / "store.json").is_file():
            raise DertsError(
                f"{destination} exists and is no store: choose another destination"
            ) from None
    if not overwrite:
        raise DertsError(
            f"{destination} holds a store already: choose another destination, or pass "
            "overwrite=True (--overwrite)"
        )


def partial_folder(destination: Path) -> Path:
    """Where a store is put together before it is moved to its destination."""
    return destination.with_name(destination.name + ".partial")


def remove_folder(folder: Path) -> None:
    """Remove a folder of ours with all it holds, if it is there."""
    if folder.exists():
        shutil.rmtree(folder)


@contextmanager
def disk_errors(destination: Path) -> Iterator[None]:
    """Turn a full disk, a forbidden place and the like into a DertsError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DertsError(
                f"the disk of {destination} is full: free some space or choose another "
                "destination, then run the same command to continue"
            ) from error
        place = error.filename or destination
        if str(place).startswith(str(destination)):
            raise DertsError(
                f"cannot write {place} ({error.strerror}): choose another destination, or make "
                "this one writable"
            ) from error
        raise DertsError(
            f"cannot read {place} ({error.strerror}): make it readable, then run the same command "
            "to continue"
        ) from error


def write_header(file: IO[bytes], shape: tuple[int, ...]) -> None:
    """The .npy header of uint8 pixels of this shape."""
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def finish_split(
    folder: Path,
    name: str,
    labels: NDArray[np.int64],
    class_names: tuple[str, ...],
    categories: tuple[str, ...] | None,
    advance: Advance | None = None,
) -> SplitEntry:
    """Write a split's labels beside its pixels, and describe both."""
    np.save(folder / f"{name}_labels.npy", labels.astype("<i8"), allow_pickle=False)
    shape = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False).shape
    return SplitEntry(
        class_names,
        categories,
        shape[0],
        (shape[1], shape[2], shape[3]),
        data_digest(folder / f"{name}.npy", advance),
        data_digest(folder / f"{name}_labels.npy"),
        per_class(labels, len(class_names)),
    )


def publish(partial: Path, description: StoreDescription) -> None:
    """Write store.json and move the finished folder to its place, over an older store."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "origin": description.origin,
        "settings": description.settings,
        "fingerprint": description.fingerprint,
        "left_out": description.left_out,
        "splits": {
            name: {
                "count": entry.count,
                "shape": entry.image_shape,
                "sha256": entry.sha256,
                "labels_sha256": entry.labels_sha256,
                "per_class": entry.per_class,
                "classes": entry.class_names,
                "categories": entry.categories,
            }
            for name, entry in description.splits.items()
        },
    }
    text = json.dumps(content, ensure_ascii=False, indent=1)
    (partial / "store.json").write_text(text + "\n", encoding="utf-8")
    destination = description.path
    if destination.exists():
        old = destination.with_name(destination.name + ".old")
        remove_folder(old)
        destination.rename(old)
        partial.rename(destination)
        remove_folder(old)
    else:
        partial.rename(destination)
