"""From any matrix of features to a store; what is wrong with one is one line."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from derts.cli import run
from derts.data import FeatureTable, item_names, open_store, prepare_matrix, read_matrix
from derts.errors import DertsError

LABELS = [f"class {n % 4}" for n in range(24)]


def rows(count: int = 24, width: int = 5) -> Any:
    return np.random.default_rng(0).normal(size=(count, width))


def by_name(store: Path) -> dict[str, tuple[str, list[float]]]:
    found = {}
    for split, table in open_store(store).items():
        assert isinstance(table, FeatureTable)
        names = item_names(store, split)
        assert names is not None
        for place, name in enumerate(names):
            label = table.class_names[int(table.labels[place])]
            found[name] = (label, table.features[place].tolist())
    return found


def expected(values: Any, names: list[str]) -> dict[str, tuple[str, list[float]]]:
    told = zip(names, LABELS, values.astype(np.float32).tolist(), strict=True)
    return {name: (label, row) for name, label, row in told}


def test_npz_with_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"text {n}" for n in range(24)]
    np.savez_compressed(tmp_path / "x.npz", X=rows(), y=np.array(LABELS), names=np.array(names))
    assert run(["data", "prepare", str(tmp_path / "x.npz"), str(tmp_path / "store")]) == 0
    assert "train: 12 rows of 5 features, 2 classes of 6" in capsys.readouterr().out
    assert by_name(tmp_path / "store") == expected(rows(), names)
    assert run(["data", "verify", str(tmp_path / "store")]) == 0


@pytest.mark.parametrize("text", ["{label}", "n{row},{label}", "label,id\n{label},n{row}"])
def test_npy_with_a_csv(tmp_path: Path, text: str) -> None:
    np.save(tmp_path / "x.npy", rows())
    heading, _, line = text.rpartition("\n")
    lines = [line.format(label=label, row=row) for row, label in enumerate(LABELS)]
    content = "\n".join(([heading] if heading else []) + lines) + "\n"
    (tmp_path / "labels.csv").write_text(content)
    prepare_matrix(tmp_path / "x.npy", tmp_path / "store")
    name = "n" if "row" in text else "row "
    assert by_name(tmp_path / "store") == expected(rows(), [f"{name}{n}" for n in range(24)])
    (tmp_path / "labels.csv").rename(tmp_path / "other.csv")
    with pytest.raises(DertsError, match="has no labels: give --labels FILE"):
        read_matrix(tmp_path / "x.npy")
    assert read_matrix(tmp_path / "x.npy", tmp_path / "other.csv").labels == LABELS


@pytest.mark.parametrize("wide", [True, False])
def test_parquet(tmp_path: Path, wide: bool) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    values = rows().astype(np.float32)
    columns: dict[str, Any] = {"label": LABELS}
    columns |= {"features": list(values)} if wide else {f"c{n}": values[:, n] for n in range(5)}
    parquet.write_table(arrow.table(columns), tmp_path / "x.parquet")
    prepare_matrix(tmp_path / "x.parquet", tmp_path / "store")
    assert by_name(tmp_path / "store") == expected(rows(), [f"row {n}" for n in range(24)])


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="pyarrow is there")
def test_parquet_without_pyarrow(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(DertsError, match=r"needs pyarrow: pip install 'derts\[parquet\]'"):
        read_matrix(tmp_path / "x.parquet")


def test_repeated_rows_and_small_classes_are_told(tmp_path: Path) -> None:
    values, labels = rows(), LABELS.copy()
    values[[4, 8, 9]] = values[0]
    labels[23] = "rare"
    np.savez(tmp_path / "x.npz", features=values, labels=labels)
    with pytest.raises(DertsError, match=r"class 'rare' has one row.* --min-images 2$"):
        prepare_matrix(tmp_path / "x.npz", tmp_path / "store")
    _, notes = prepare_matrix(tmp_path / "x.npz", tmp_path / "store", min_rows=2)
    assert notes == [
        "3 rows repeat an earlier row, 1 of them with another label",
        "left out 1 classes with fewer than 2 rows",
    ]
    with pytest.raises(DertsError, match=r"0 classes .*, \d+ are left out: lower --min-images"):
        prepare_matrix(tmp_path / "x.npz", tmp_path / "other", min_rows=100)
    np.savez(tmp_path / "few.npz", features=values[:3], labels=["a", "b", "c"])
    with pytest.raises(DertsError, match=r"has one row, and a task needs more: add some"):
        prepare_matrix(tmp_path / "few.npz", tmp_path / "other")


def test_few_rows_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("derts.data.matrices.AT_ONCE", 12)
    np.save(tmp_path / "x.npy", np.asfortranarray(rows()))
    (tmp_path / "labels.csv").write_text("\n".join(LABELS))
    assert max(map(len, read_matrix(tmp_path / "x.npy").blocks())) == 2
    prepare_matrix(tmp_path / "x.npy", tmp_path / "store")
    assert by_name(tmp_path / "store") == expected(rows(), [f"row {n}" for n in range(24)])


def spoilt(place: Any, value: float) -> Any:
    values = rows()
    values[place] = value
    return values


class Trap:
    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return print, ("it ran",)


TRAP = np.array([Trap()], dtype=object)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": spoilt((7, 2), np.nan), "y": LABELS}, "row 7 has nan in column 2: remove or"),
        ({"X": spoilt((0, 0), 1e300), "y": LABELS}, "row 0 has inf in column 0"),
        ({"X": rows(), "y": ["a"] * 24}, "1 classes cannot be split into train, val and test"),
        ({"X": rows(), "y": LABELS[:-1]}, "24 rows but 23 labels: give one per row"),
        ({"X": rows()[0], "y": LABELS}, r"float64 \[5\]: give numbers \[rows, features\]"),
        ({"X": rows().astype(str), "y": LABELS}, r"holds <U\d+"),
        ({"X": np.zeros((24, 0)), "y": LABELS}, "at least one"),
        ({"X": rows(), "y": np.linspace(0, 1, 24)}, "whole numbers or texts"),
        ({"X": rows()}, "has no labels: save them as the array labels"),
        ({"Z": rows(), "y": LABELS}, "no array features or X, only Z, y"),
        ({"X": rows(), "y": TRAP}, "allow_pickle"),
        ({"X": TRAP, "y": LABELS}, "allow_pickle"),
    ],
)
def test_a_bad_matrix_is_one_line(
    tmp_path: Path, arrays: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(DertsError, match=message):
        prepare_matrix(tmp_path / "x.npz", tmp_path / "store")
    assert not (tmp_path / "store").exists()
    assert "it ran" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [("a\n" * 5, "5 lines for 24 rows"), ("a,b\n" * 23 + "c\n", "fewer columns")],
)
def test_a_bad_csv_is_one_line(tmp_path: Path, content: str, message: str) -> None:
    np.save(tmp_path / "x.npy", rows())
    (tmp_path / "labels.csv").write_text(content)
    with pytest.raises(DertsError, match=message):
        prepare_matrix(tmp_path / "x.npy", tmp_path / "store")


def test_truncated_and_missing_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", X=rows(), y=LABELS)
    (tmp_path / "x.npz").write_bytes((tmp_path / "x.npz").read_bytes()[:-40])
    with pytest.raises(DertsError, match=r"cannot be read .*: write it again"):
        read_matrix(tmp_path / "x.npz")
    with pytest.raises(DertsError, match="does not exist"):
        read_matrix(tmp_path / "no.npz")
