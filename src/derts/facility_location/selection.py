"""Facility location: K rows of a matrix that stand for all N of them.

Maximises F(S) = C − Σ_j min_{i∈S} ‖g_j − g_i‖ with the Euclidean distance, not squared. Knows
nothing of tasks: numbers in, row numbers and weights out. See docs/selection.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from operator import index
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from derts.errors import DertsError
from derts.facility_location.distances import Distances, Floats, Integers
from derts.facility_location.greedy import candidate_places, greedy, lazy, stochastic
from derts.facility_location.on_gpu import greedy_on_gpu

Engine = Literal["greedy", "lazy", "stochastic"]
PARTS = {
    "indices": torch.int64,
    "weights": torch.float32,
    "gains": torch.float64,
    "assignment": torch.int64,
}


@dataclass(frozen=True, eq=False, repr=False)
class Selection:
    """K selected rows out of N, in the order in which they were picked.

    >>> selection = select(torch.tensor([[0.0], [0.1], [5.0]]), 2)
    >>> selection.indices.tolist(), selection.weights.tolist()
    ([1, 2], [2.0, 1.0])
    >>> selection
    Selection(2 of 3 rows, objective 0.1)
    """

    indices: Tensor
    """int64 [K], no row twice."""
    weights: Tensor
    """float32 [K]: how many rows each selected row stands for, itself included; their sum is N.
    A row that is equally near to several stands with the lowest index of them."""
    gains: Tensor
    """float64 [K]: by how much each pick lowered the objective. Before the first pick every row
    is taken to be as far away as the largest distance between two rows."""
    objective: float
    """Sum over all rows of the distance to the nearest selected row; lower is better."""
    assignment: Tensor
    """int64 [N]: position in ``indices`` of the selected row that stands for each row."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """How the selection was made."""

    def __repr__(self) -> str:
        about = f"{len(self.indices)} of {len(self.assignment)} rows"
        return f"Selection({about}, objective {self.objective:.4g})"

    def batches(self, pool: Any, size: int, seed: int = 0) -> Iterator[tuple[Any, Tensor]]:
        """Yields ``(pool[indices], weights)`` with each selected row once, in a shuffled order.

        ``pool`` is anything that a tensor of row numbers indexes: a TaskPool, a tensor, an array.
        Weights are scaled to mean 1 over the whole selection. The last batch may be short.

        >>> selection = select(torch.tensor([[0.0], [0.1], [5.0]]), 2)
        >>> [(batch.tolist(), weights.tolist()) for batch, weights in
        ...  selection.batches(torch.tensor([10, 11, 12]), 2)]
        [([11, 12], [1.33..., 0.66...])]
        """
        size, rows = whole_number("size", size, 1, 2**63 - 1), len(self.assignment)
        seed = whole_number("seed", seed, -(2**63), 2**63 - 1)
        try:
            count = len(pool)
            pool[self.indices[:0]]
        except (TypeError, LookupError, RuntimeError):  # NotImplementedError is of the last kind
            cannot = f"a {type(pool).__name__} cannot be indexed by a tensor of row numbers"
            raise DertsError(f"{cannot}: give a TaskPool, a tensor or an array") from None
        if count != rows:
            wrong = f"the pool has {count} rows but the selection was made from {rows}"
            raise DertsError(f"{wrong}: give the pool that the gradients are of")
        scaled = self.weights / self.weights.mean()
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.indices), generator=generator)
        for some in order.split(size):
            yield pool[self.indices[some]], scaled[some]

    def to_json(self) -> str:
        """The selection as one JSON object: indices, weights, gains, objective, settings, …"""
        values = vars(self).items()
        return json.dumps({name: x.tolist() if isinstance(x, Tensor) else x for name, x in values})

    def save(self, path: str | Path) -> None:
        """Writes :meth:`to_json` to ``path``, which is then whole or as it was."""
        from derts.files import write_atomically

        try:
            write_atomically(Path(path), f"{self.to_json()}\n".encode())
        except OSError as error:
            raise DertsError(f"cannot write {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: str | Path) -> Selection:
        """Reads what :meth:`save` wrote."""
        from derts.files import parse_json

        try:
            stored = parse_json(Path(path).read_text(encoding="utf-8"))
            parts = {name: torch.tensor(stored[name], dtype=kind) for name, kind in PARTS.items()}
            settings = dict(stored["settings"])
            found = cls(**parts, objective=float(stored["objective"]), settings=settings)
            count, rows = len(found.indices.unique()), len(found.assignment)
            shapes = found.indices.shape, found.weights.shape, found.gains.shape
            if set(shapes) != {(count,)} or found.assignment.ndim != 1:
                raise ValueError("a row twice, or parts that differ in length")
            for places, limit in ((found.indices, rows), (found.assignment, count)):
                if not 0 <= int(places.min()) <= int(places.max()) < limit:
                    raise ValueError("a row number out of range")
            return found
        except OSError as error:
            raise DertsError(f"cannot read selection {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
            raise DertsError(
                f"{path} is not a selection; write one with Selection.save or derts select"
            ) from error


def select(
    gradients: Tensor | NDArray[Any],
    k: int,
    *,
    engine: Engine = "greedy",
    epsilon: float = 0.01,
    seed: int = 0,
    memory_limit_gib: float = 2.0,
    device: str | torch.device | None = None,
) -> Selection:
    """Selects ``k`` of the N rows of ``gradients`` [N, d].

    ``greedy`` and ``lazy`` give the same exact greedy answer, ties to the lowest index; greedy is
    the faster. ``stochastic`` looks at ⌈(N/K)·ln(1/epsilon)⌉ rows drawn with ``seed`` for each
    pick. The N × N distances are kept in memory up to ``memory_limit_gib`` and recomputed by
    blocks above it, with the same answer. Gradients on an NVIDIA GPU, or sent there by ``device``,
    stay there for ``greedy`` up to 16,384 rows, or 131,072 of at most 32 dimensions, and for
    ``stochastic`` up to 16,384 with at most 64 candidates; all else is done on the CPU.

    >>> select(np.array([[0.0, 0.0], [0.0, 0.1], [9.0, 9.0]]), k=2).indices
    tensor([1, 2])
    """
    points = _checked_points(gradients)
    k = whole_number("k", k, 1, len(points), "the number of rows, ")
    seed = whole_number("seed", seed, 0, 2**63 - 1)
    if engine not in (engines := get_args(Engine)):
        raise DertsError(f"engine is {engine!r}; choose one of {', '.join(engines)}")
    numbers: dict[str, Any] = {"epsilon": epsilon, "memory_limit_gib": memory_limit_gib}
    for name, value in numbers.items():
        if not isinstance(value, Real):
            raise DertsError(f"{name} is {value!r}; give a number")
    if not 1e-300 < epsilon < 1:  # of less, the inverse is infinite
        raise DertsError(f"epsilon is {epsilon}; choose a number between 0 and 1")
    if not memory_limit_gib >= 0:
        raise DertsError(f"memory_limit_gib is {memory_limit_gib}; it must not be negative")
    try:
        points = points if device is None else points.to(torch.device(device))
        if points.is_meta:
            raise TypeError("it holds no numbers")
    except (RuntimeError, AssertionError, TypeError) as error:  # torch without CUDA asserts
        reason = str(error).partition("\n")[0][:80]
        raise DertsError(f"device {device} cannot be used here ({reason}): leave it out") from None
    places = None
    if engine == "stochastic":
        places = candidate_places(len(points), k, epsilon, seed)
    found = None if engine == "lazy" else greedy_on_gpu(points, k, memory_limit_gib, places)
    if found is None:
        distances = Distances(points.cpu(), memory_limit_gib)
        if places is not None:
            picked = stochastic(distances, places)
        elif engine == "lazy":
            picked = lazy(distances, k)
        else:
            picked = greedy(distances, k, memory_limit_gib)
        found = *picked, assign(distances, picked[0], picked[2]), distances.scale
    picks, gains, nearest, assignment, scale = found
    return Selection(
        indices=torch.from_numpy(picks),
        weights=torch.from_numpy(np.bincount(assignment, minlength=k).astype(np.float32)),
        gains=torch.from_numpy(gains * scale),
        objective=float(nearest.sum(dtype=np.float64)) * scale,
        assignment=torch.from_numpy(assignment),
        settings={"k": k, "engine": engine, "epsilon": epsilon, "seed": seed},
    )


def select_file(gradients: str | Path, k: int, out: str | Path, **options: Any) -> Selection:
    """Selects ``k`` rows of the matrix in the .npy file ``gradients`` and writes JSON to ``out``.

    The JSON object has the fields of :class:`Selection`; ``options`` are those of :func:`select`.
    """
    try:
        with Path(gradients).open("rb") as file:
            matrix = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise DertsError(f"cannot read {gradients}: {error.strerror}") from error
    except Exception as error:  # numpy parses the header as Python and lets any mistake through
        reason = str(error).partition("\n")[0]  # what follows may advise to trust the file
        fix = "write one with numpy.save"
        raise DertsError(f"{gradients} is not a .npy file of numbers ({reason}); {fix}") from error
    selection = select(matrix, k, **options)
    selection.save(out)
    return selection


def assign(distances: Distances, picks: Integers, nearest: Floats) -> Integers:
    """Position in ``picks`` [K] of each row's nearest pick, int64 [N].

    A pick stands for itself; among equally near picks the lowest index stands for the row.
    """
    owner = np.full(distances.count, distances.count)
    ordered = np.sort(picks)
    height = max(1, (1 << 16) // distances.count)
    for start in range(0, len(ordered), height):
        some = ordered[start : start + height]
        flat = np.flatnonzero(distances.rows(some) == nearest)
        pick, row = np.divmod(flat, distances.count)
        np.minimum.at(owner, row, some[pick])
    owner[picks] = picks
    position = np.full(distances.count + 1, -1)
    position[picks] = np.arange(len(picks))
    assignment: Integers = position[owner]
    return assignment


def whole_number(name: str, value: Any, least: int, most: int, which: str = "") -> int:
    """A value as a whole number in a range; an error if it is none."""
    try:
        number = index(value)
    except TypeError:
        raise DertsError(f"{name} is {value!r}; give a whole number, as int({name})") from None
    if not least <= number <= most:
        raise DertsError(f"{name} is {number}; choose between {least} and {which}{most}")
    return number


def _checked_points(gradients: Any) -> Tensor:
    """Finite float64 [N, d], where the gradients are."""
    if not isinstance(gradients, np.ndarray | Tensor):
        kind = type(gradients).__name__
        raise DertsError(f"gradients are a {kind}; give a matrix, as torch.tensor(gradients)")
    if isinstance(gradients, np.ndarray):
        if gradients.dtype.kind not in "fiub":
            raise DertsError(f"gradients have type {gradients.dtype}; give real numbers")
        # A copy: the array may be read-only or have strides that torch does not know.
        points = torch.from_numpy(np.array(gradients, dtype=np.float64, order="C"))
    elif gradients.is_meta:
        raise DertsError("gradients are on the meta device, without numbers; make them on the CPU")
    elif gradients.is_nested:
        fix = "give a matrix whose rows are equally long, as torch.stack(gradients.unbind())"
        raise DertsError(f"gradients are a nested tensor; {fix}")
    elif gradients.layout != torch.strided:
        raise DertsError("gradients are a sparse tensor; give gradients.to_dense()")
    elif gradients.is_complex():
        raise DertsError(f"gradients have type {gradients.dtype}; give real numbers")
    else:
        points = gradients.detach().double()
    if points.ndim != 2 or not points.numel():
        wanted = "give a matrix [rows, dimensions]" if points.numel() else "nothing to select from"
        raise DertsError(f"gradients have shape {list(points.shape)}; {wanted}")
    bad = (~torch.isfinite(points).all(1)).nonzero()[:, 0]
    if len(bad):
        which = f"row {int(bad[0])} of the gradients is not finite ({len(bad)} such rows of"
        fix = "drop these rows, or lower the learning rate that made them"
        raise DertsError(f"{which} {len(points)}); {fix}")
    return points
