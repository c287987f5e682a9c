"""Using a selection: edge cases, refusals, batches and files."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from derts.errors import DertsError
from derts.facility_location import Engine, Selection, select, select_file
from derts.facility_location.distances import Distances

ENGINES: tuple[Engine, ...] = ("greedy", "lazy", "stochastic")


def points(count: int = 50, dimensions: int = 4) -> torch.Tensor:
    return torch.randn(count, dimensions, generator=torch.Generator().manual_seed(0))


def nested(rows: int) -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):  # that they are a prototype
        return torch.nested.nested_tensor([torch.ones(2)] * rows)


def test_it_loads_nothing_else_of_derts() -> None:
    program = (
        "import sys; from derts import select; "
        "print(*(name for name in sys.modules if name.split('.')[0] == 'derts'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    names = set(done.stdout.split())
    assert {"derts.errors", "derts.facility_location.greedy"} <= names, done.stderr
    inside = {name for name in names if name.startswith("derts.facility_location")}
    assert names - inside == {"derts", "derts.errors"}


@pytest.mark.parametrize("engine", ENGINES)
def test_equal_rows_are_picked_in_order_and_stand_for_themselves(engine: Engine) -> None:
    selection = select(torch.full((7, 3), 0.1), 3, engine=engine)
    if engine != "stochastic":
        assert selection.indices.tolist() == [0, 1, 2]
    assert selection.objective == 0
    assert float(selection.weights.sum()) == 7
    assert float(selection.weights.max()) == 5


@pytest.mark.parametrize("engine", ENGINES)
def test_one_and_all(engine: Engine) -> None:
    everything = select(points(), 50, engine=engine)
    assert sorted(everything.indices.tolist()) == list(range(50))
    assert everything.weights.tolist() == [1.0] * 50
    assert everything.objective == 0
    one = select(points(), 1)
    medoid = int(torch.cdist(points().double(), points().double()).sum(1).argmin())
    assert (one.indices.tolist(), one.weights.tolist()) == ([medoid], [50.0])
    assert select(torch.zeros(1, 3), 1, engine=engine).indices.tolist() == [0]


@pytest.mark.parametrize("kind", [torch.int64, torch.float16, torch.bfloat16, torch.float64])
def test_other_number_types(kind: torch.dtype) -> None:
    converted = (points() * 10).to(kind)
    assert select(converted, 5).indices.tolist() == select(converted.double(), 5).indices.tolist()


def test_arrays_may_be_read_only_strided_or_byte_swapped() -> None:
    array = points().numpy()
    swapped = array.astype(">f4")[:, ::-1]
    swapped.flags.writeable = False
    assert select(swapped, 5).indices.tolist() == select(array, 5).indices.tolist()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_rows_that_are_not_finite_are_named(bad: float) -> None:
    gradients = points()
    gradients[[13, 31], 2] = bad
    with pytest.raises(DertsError, match=r"row 13 .*\(2 such rows of 50\)"):
        select(gradients, 5)


@pytest.mark.parametrize(
    ("gradients", "arguments", "message"),
    [
        (points(), {"k": 51}, "k is 51"),
        (points(), {"k": 0}, "k is 0"),
        (torch.zeros(0, 3), {"k": 1}, "nothing to select from"),
        (torch.zeros(3, 0), {"k": 1}, "nothing to select from"),
        (torch.zeros(5), {"k": 1}, r"shape \[5\]"),
        (torch.zeros(5, 2, dtype=torch.complex64), {"k": 1}, "complex"),
        (np.array([["a", "b"]]), {"k": 1}, "real numbers"),
        ([[0.0], [1.0]], {"k": 1}, r"are a list; .* torch\.tensor\(gradients\)"),
        (points().to_sparse(), {"k": 1}, r"to_dense\(\)"),
        (points(), {"k": 2.5}, r"k is 2\.5; give a whole number"),
        (points(), {"k": "2"}, "k is '2'"),
        (points(), {"k": 5, "engine": "magic"}, "greedy, lazy, stochastic"),
        (points(), {"k": 5, "seed": 1.5}, r"seed is 1\.5; give a whole number"),
        (points(), {"k": 5, "epsilon": "a"}, "epsilon is 'a'; give a number"),
        (points(), {"k": 5, "memory_limit_gib": None}, "memory_limit_gib is None; give a number"),
        (points(), {"k": 5, "device": ["cpu"]}, "device .* cannot be used .*: leave it out"),
        (points(), {"k": 5, "device": "meta"}, "device meta cannot be used .*: leave it out"),
        (torch.zeros(9, 2, device="meta"), {"k": 5}, "on the meta device"),
        (nested(9), {"k": 5}, r"torch\.stack\(gradients"),
        (points(), {"k": 5, "engine": "stochastic", "epsilon": 1e-320}, "epsilon is 1e-320"),
        (points(), {"k": 5, "device": "quantum"}, "device quantum cannot be used .*: leave it out"),
        (points(), {"k": 5, "epsilon": 0.0}, "epsilon"),
        (points(), {"k": 5, "memory_limit_gib": -1.0}, "memory_limit_gib"),
    ],
)
def test_refusals(gradients: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DertsError, match=message):
        select(gradients, **arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_may_be_named_and_one_that_is_not_there_is_refused() -> None:
    assert select(points(), 5, device="cpu").indices.equal(select(points(), 5).indices)
    with pytest.raises(DertsError, match=r"device cuda cannot be used here .*: leave it out"):
        select(points(), 5, device="cuda")


def test_a_selection_is_shown_in_a_line_and_k_may_be_of_numpy() -> None:
    selection = select(points(), np.int64(7))  # type: ignore[arg-type]
    assert repr(selection).startswith("Selection(7 of 50 rows, objective ")
    assert len(repr(selection)) < 80
    assert json.loads(selection.to_json())["settings"]["k"] == 7


@pytest.mark.parametrize("rows", [49, 51])
def test_another_pool_than_the_gradients_are_of_is_refused(rows: int) -> None:
    with pytest.raises(DertsError, match=rf"has {rows} rows but the selection was made from 50"):
        next(select(points(), 7).batches(torch.arange(rows), 2))


@pytest.mark.parametrize(
    "pool",
    [
        list(range(50)),
        nested(50),
        torch.ones(50, 2).to_sparse(),
        torch.tensor(50),
        dict.fromkeys(range(50)),
        None,
    ],
)
def test_a_pool_that_row_numbers_do_not_index_is_refused(pool: Any) -> None:
    with pytest.raises(
        DertsError, match=r"cannot be indexed .*: give a TaskPool, a tensor or an a"
    ):
        next(select(points(), 7).batches(pool, 2))


def test_batches_hold_each_selected_row_once_with_mean_weight_one() -> None:
    selection = select(points(), 23)
    pool = torch.arange(100, 150)
    batches = list(selection.batches(pool, 5, seed=1))
    assert [len(batch) for batch, _ in batches] == [5, 5, 5, 5, 3]
    rows = torch.cat([batch for batch, _ in batches]) - 100
    weights = torch.cat([weights for _, weights in batches])
    assert sorted(rows.tolist()) == sorted(selection.indices.tolist())
    assert float(weights.mean()) == pytest.approx(1)
    expected = dict(zip(selection.indices.tolist(), selection.weights.tolist(), strict=True))
    scaled = weights * selection.weights.mean()
    assert scaled.tolist() == pytest.approx([expected[row] for row in rows.tolist()])
    again = torch.cat([batch for batch, _ in selection.batches(pool, 5, seed=1)])
    other = torch.cat([batch for batch, _ in selection.batches(pool, 5, seed=2)])
    assert again.tolist() == (rows + 100).tolist() != other.tolist()
    with pytest.raises(DertsError, match=r"size is 2\.5; give a whole number"):
        next(selection.batches(pool, 2.5))  # type: ignore[arg-type]
    with pytest.raises(DertsError, match=r"seed is 1\.5; give a whole number"):
        next(selection.batches(pool, 2, seed=1.5))  # type: ignore[arg-type]
    with pytest.raises(DertsError, match="size is 0"):
        next(selection.batches(pool, 0))


def test_save_and_load(tmp_path: Path) -> None:
    selection = select(points(), 10)
    selection.save(tmp_path / "selection.json")
    assert Selection.load(tmp_path / "selection.json").to_json() == selection.to_json()
    assert [file.name for file in tmp_path.iterdir()] == ["selection.json"]
    with pytest.raises(DertsError, match="cannot read"):
        Selection.load(tmp_path / "missing.json")
    with pytest.raises(DertsError, match="cannot write"):
        selection.save(tmp_path / "nowhere" / "selection.json")
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(DertsError, match="is not a selection"):
        Selection.load(tmp_path / "other.json")


def test_select_file(tmp_path: Path) -> None:
    np.save(tmp_path / "gradients.npy", points().numpy())
    selection = select_file(tmp_path / "gradients.npy", 10, tmp_path / "out.json", engine="lazy")
    stored = json.loads((tmp_path / "out.json").read_text())
    assert stored["indices"] == selection.indices.tolist() == select(points(), 10).indices.tolist()
    assert stored["settings"]["engine"] == "lazy"
    assert {"weights", "gains", "objective"} <= stored.keys()


def test_files_that_cannot_work_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with pytest.raises(DertsError, match="cannot read"):
        select_file(tmp_path / "missing.npy", 1, out)
    (tmp_path / "text.npy").write_text("1 2 3")
    with pytest.raises(DertsError, match=r"not a \.npy file"):
        select_file(tmp_path / "text.npy", 1, out)
    (tmp_path / "empty.npy").write_bytes(b"")
    with pytest.raises(DertsError, match=r"not a \.npy file"):
        select_file(tmp_path / "empty.npy", 1, out)
    np.save(tmp_path / "objects.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    with pytest.raises(DertsError, match=r"not a \.npy file"):
        select_file(tmp_path / "objects.npy", 1, out)
    head = b"\x93NUMPY\1\0" + (60_000).to_bytes(2, "little") + b"(" * 60_000
    (tmp_path / "deep.npy").write_bytes(head)
    with pytest.raises(
        DertsError, match=r"may not be safe to load securely\.\); write one with nump"
    ):
        select_file(tmp_path / "deep.npy", 1, out)
    np.save(tmp_path / "vector.npy", np.zeros(3))
    with pytest.raises(DertsError, match="shape"):
        select_file(tmp_path / "vector.npy", 1, out)
    np.save(tmp_path / "good.npy", np.zeros((3, 2)))
    with pytest.raises(DertsError, match="cannot write"):
        select_file(tmp_path / "good.npy", 1, tmp_path / "nowhere" / "out.json")
    assert not out.exists()


def test_stochastic_greedy_follows_its_seed_and_looks_at_as_many_rows_as_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []
    exact = Distances.exact_gains

    def counted(self: Distances, rows: Any, nearest: Any) -> Any:
        looked.append(len(rows))
        return exact(self, rows, nearest)

    monkeypatch.setattr(Distances, "exact_gains", counted)
    first = select(points(), 10, engine="stochastic", epsilon=0.2, seed=0).indices.tolist()
    assert looked == [9] * 10  # ⌈50 / 10 × ln 5⌉
    others = [select(points(), 10, engine="stochastic", epsilon=0.2, seed=n) for n in (0, 1)]
    assert first == others[0].indices.tolist()
    assert first != others[1].indices.tolist()
