"""Any matrix of features with labels, from .npz, .npy or .parquet to a store."""

import csv
import hashlib
import os
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from derts.data.folders import split_by_class
from derts.data.sources import DEFAULT_FRACTIONS, check_unpacked_size, number_labels
from derts.data.store import StoreDescription
from derts.data.store_writing import SplitContent, check_destination, write_store
from derts.data.table import FeatureTable
from derts.errors import DertsError
from derts.progress import Progress, silent

ENDINGS = (".npz", ".npy", ".parquet")
FEATURES = ("features", "X", "x", "embeddings", "embedding")
LABELS = ("labels", "label", "y", "class", "target")
NAMES = ("names", "name", "path", "file", "id")
AT_ONCE = 1 << 22  # numbers that are read at once
Columns = tuple[NDArray[Any], list[str] | None, list[str] | None]


@dataclass(frozen=True)
class Matrix:
    """Rows of any real numbers [n, d], of an .npy on disk, with labels and names if it has them."""

    path: Path
    values: NDArray[Any]
    labels: list[str] | None
    names: list[str] | None

    def __len__(self) -> int:
        return len(self.values)

    def name(self, row: int) -> str:
        return self.names[row] if self.names else f"row {row}"

    def blocks(self, rows: Sequence[int] | None = None) -> Iterator[torch.Tensor]:
        """All rows, or those of ascending numbers, as float32 [some, d]."""
        step = max(1, AT_ONCE // self.values.shape[1])
        for start in range(0, len(self) if rows is None else len(rows), step):
            some = slice(start, start + step) if rows is None else rows[start : start + step]
            with np.errstate(over="ignore"):  # told by `check`
                yield torch.from_numpy(np.array(self.values[some], dtype=np.float32, order="C"))

    def check(self, progress: Progress = silent) -> list[str]:
        """Refuse what is no finite number; tell of rows that are the same."""
        first: dict[bytes, int] = {}
        same = other = row = 0
        with progress("checking", total=len(self), unit="rows") as advance:
            for block in self.blocks():
                bad = (~block.isfinite()).nonzero()
                if len(bad):
                    place, column = bad[0].tolist()
                    found = f"{self.name(row + place)} has {block[place, column]:.0f}"
                    fix = f"in column {column}: remove or repair such rows"
                    raise DertsError(f"{self.path}: {found} {fix}")
                for values in block.numpy():
                    twin = first.setdefault(hashlib.blake2b(values, digest_size=16).digest(), row)
                    same += twin != row
                    if self.labels is not None:
                        other += self.labels[twin] != self.labels[row]
                    row += 1
                advance(len(block))
        told = f", {other:,} of them with another label" if other else ""
        return [f"{same:,} rows repeat an earlier row{told}"] if same else []

    def table(self) -> FeatureTable:
        """All rows as one table, in memory."""
        names, labels = number_labels(self.labels or [])
        return FeatureTable(torch.cat(list(self.blocks())), torch.from_numpy(labels), names)


def is_matrix(path: Path | str) -> bool:
    """Whether a path is that of a file of features, by its ending."""
    return Path(path).suffix.lower() in ENDINGS and not Path(path).is_dir()


def read_matrix(path: Path | str, labels: Path | None = None, *, labelled: bool = True) -> Matrix:
    """The matrix in a file, and its labels unless it need not be `labelled`.

    .npz      arrays features (or X) [n, d], labels (or y) [n], and names [n] if it likes
    .npy      [n, d]; labels in a CSV: `labels`, or labels.csv beside it
    .parquet  a column of lists called features, or all columns of numbers; label; name

    No file is ever unpickled.
    """
    path, given, names = Path(path), None, None
    ending, beside = path.suffix.lower(), path.parent / "labels.csv"
    if not path.is_file() or ending not in ENDINGS:
        wrong = "holds no features" if path.exists() else "does not exist"
        raise DertsError(f"{path} {wrong}: give a .npz, .npy or .parquet file of features")
    try:
        if ending == ".npy":
            values = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
            labels = labels or (beside if beside.is_file() else None)
        else:
            check_unpacked_size([path])
            values, given, names = (_read_npz if ending == ".npz" else _read_parquet)(path)
    except DertsError:
        raise
    except Exception as error:  # numpy reads headers as Python: any mistake comes through
        raise DertsError(f"{path} cannot be read ({error}): write it again") from None
    if values.ndim != 2 or values.dtype.kind not in "fiub" or not values.size:
        found = f"{values.dtype} {list(values.shape)}"
        raise DertsError(f"{path} holds {found}: give numbers [rows, features], at least one")
    if labels is not None:
        names, given = _read_labels(labels, len(values), names)
    if given is None and labelled:
        fix = "save them as the array labels" if ending == ".npz" else "give --labels FILE, a CSV"
        raise DertsError(f"{path} has no labels: {fix}")
    for what, texts in (("labels", given), ("names", names)):
        if texts is not None and len(texts) != len(values):
            wrong = f"{path} has {len(values):,} rows but {len(texts):,} {what}"
            raise DertsError(f"{wrong}: give one per row")
    return Matrix(path, values, given, names)


def rows_for_model(given: Any, width: int, *, labelled: bool = False) -> Matrix:
    """Rows for a model that takes `width` features: in a file, or as an array [n, d]."""
    if isinstance(given, str | Path):
        matrix = read_matrix(given, labelled=labelled)
    else:
        matrix = Matrix(Path("rows"), np.atleast_2d(np.asarray(given)), None, None)
    if matrix.values.ndim != 2 or matrix.values.shape[1] != width:
        found = f"{matrix.path} has {matrix.values.shape[-1]} features a row"
        raise DertsError(f"{found} but the model was trained on {width}: make them the same way")
    matrix.check()
    return matrix


def prepare_matrix(
    source: Path | str,
    destination: Path | str,
    *,
    labels: Path | None = None,
    overwrite: bool = False,
    seed: int = 0,
    split_fractions: tuple[float, float, float] = DEFAULT_FRACTIONS,
    min_rows: int = 1,
    progress: Progress = silent,
) -> tuple[StoreDescription, list[str]]:
    """Write the matrix of a file as a store, its classes split, and what is worth telling of it.

    labels           a CSV with the labels of an .npy
    split_fractions  train, val and test shares of the classes
    min_rows         leave out classes with fewer rows

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.savez(folder / "x.npz", features=np.eye(6), labels=[0, 0, 1, 1, 2, 2])
    >>> prepare_matrix(folder / "x.npz", folder / "store")[0].lines()[1]
    'train: 2 rows of 6 features, 1 classes of 2'
    """
    matrix, destination = read_matrix(source, labels), Path(os.path.abspath(destination))
    check_destination(destination, overwrite=overwrite)
    assert matrix.labels is not None
    counts = Counter(matrix.labels)
    few = sorted(name for name, count in counts.items() if count < min_rows)
    classes = sorted(set(counts) - set(few))
    chosen = split_by_class(classes, split_fractions, seed, few)
    rare = min(classes, key=counts.__getitem__)
    if counts[rare] < 2:
        one_row = f"{source}: class {rare!r} has one row, and a task needs more"
        raise DertsError(f"{one_row}: add some, or leave such classes out with --min-images 2")
    notes = matrix.check(progress)
    if few:
        notes.append(f"left out {len(few)} classes with fewer than {min_rows} rows")
    contents = {}
    for split, names in chosen.items():
        number_of = {name: number for number, name in enumerate(names)}
        rows = [row for row, name in enumerate(matrix.labels) if name in number_of]
        labels_of = torch.tensor([number_of[matrix.labels[row]] for row in rows])
        contents[split] = SplitContent(
            matrix.blocks(rows), matrix.values.shape[1:], labels_of, tuple(names),
            names=[matrix.name(row) for row in rows],
        )  # fmt: skip
    origin = {"kind": "features", "name": matrix.path.name}
    return write_store(contents, destination, origin, overwrite=overwrite), notes


def _first(names: Iterable[str], known: Container[str]) -> str | None:
    return next((name for name in names if name in known), None)


def _read_npz(path: Path) -> Columns:
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        wanted = (_first(names, file) for names in (FEATURES, LABELS, NAMES))
        found = [file[name] if name else None for name in wanted]
        if found[0] is None:
            has = ", ".join(list(file)[:5]) or "nothing"
            raise DertsError(f"{path} has no array features or X, only {has}: name it so")
    return found[0], _texts(path, found[1]), _texts(path, found[2])


def _texts(path: Path, values: NDArray[Any] | None) -> list[str] | None:
    if values is None:
        return None
    if values.ndim != 1 or values.dtype.kind not in "iubUS":
        found = f"{values.dtype} {list(values.shape)}"
        raise DertsError(f"{path}: labels and names are whole numbers or texts [n], not {found}")
    decoded = np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
    return [str(one) for one in decoded]


def _read_parquet(path: Path) -> Columns:
    try:
        from pyarrow import parquet
    except ImportError:
        raise DertsError(f"{path} needs pyarrow: pip install 'derts[parquet]'") from None
    table = parquet.read_table(path)
    columns = table.column_names
    wide, label, name = (_first(columns, known) for known in (FEATURES, LABELS, NAMES))
    if wide:
        values = np.stack([np.asarray(row) for row in table.column(wide).to_numpy()])
    else:
        numbers = [one for one in columns if one not in (label, name)]
        values = np.stack([table.column(one).to_numpy() for one in numbers], 1)
    texts = (table.column(one).to_pylist() if one else None for one in (label, name))
    given, called = (None if text is None else [str(value) for value in text] for text in texts)
    return values, given, called


def _read_labels(
    path: Path, count: int, names: list[str] | None
) -> tuple[list[str] | None, list[str]]:
    """Names and labels of a CSV: one column of labels, or name and label; header or not."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DertsError(f"{path} cannot be read ({error}): give a CSV of labels") from None
    heading = rows.pop(0) if len(rows) == count + 1 else []
    if len(rows) != count:
        raise DertsError(f"{path} has {len(rows):,} lines for {count:,} rows: give one label each")
    width = min(map(len, rows))
    label = next((place for place, one in enumerate(heading) if one in LABELS), width - 1)
    name = next((place for place, one in enumerate(heading) if one in NAMES), 0)
    if width < max(map(len, rows)) or label >= width:
        raise DertsError(f"{path} has lines with fewer columns than others: repair them")
    return [row[name] for row in rows] if name != label else names, [row[label] for row in rows]
