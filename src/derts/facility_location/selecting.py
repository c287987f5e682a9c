"""Facility location: K rows of a matrix that stand for all N of them.

Maximises F(S) = C − Σ_j min_{i∈S} ‖g_j − g_i‖ with the Euclidean distance, not squared. Knows
nothing of tasks: numbers in, row numbers and weights out. See docs/selection.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from derts.errors import DertsError
from derts.facility_location.device import DeviceDistances
from derts.facility_location.distances import Distances
from derts.facility_location.engines import Picks, assign, lazy, stochastic
from derts.facility_location.greedy import greedy
from derts.facility_location.matrix import Doubles, Floats, Integers
from derts.facility_location.selection import Selection

__all__ = ["Engine", "Selection", "select", "select_file"]

Engine = Literal["greedy", "lazy", "stochastic"]


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
    blocks above it, with the same answer. The arithmetic is done on ``device``, by default where
    the gradients are.

    >>> select(np.array([[0.0, 0.0], [0.0, 0.1], [9.0, 9.0]]), k=2).indices
    tensor([1, 2])
    """
    points = _checked_points(gradients, device)
    count = len(points)
    if engine not in get_args(Engine):
        raise DertsError(f"engine is {engine!r}; choose one of {', '.join(get_args(Engine))}")
    if not 1 <= k <= count:
        raise DertsError(f"k is {k}; choose between 1 and the number of rows, {count}")
    if not 0 <= seed < 2**63:
        raise DertsError(f"seed is {seed}; choose a whole number from 0 to 2⁶³ − 1")
    if not 0 < epsilon < 1:
        raise DertsError(f"epsilon is {epsilon}; choose a number between 0 and 1")
    if not memory_limit_gib >= 0:
        raise DertsError(f"memory_limit_gib is {memory_limit_gib}; it must not be negative")
    distances: Distances | DeviceDistances
    if points.device.type == "cpu":
        distances = Distances(points, memory_limit_gib)
    else:
        distances = DeviceDistances(points, memory_limit_gib)
    on_device = None
    if engine == "greedy" and isinstance(distances, DeviceDistances):
        on_device = distances.greedy(k)
    if on_device is not None:
        picks, gains, nearest, assignment = _fetched(on_device)
    else:
        picks, gains, nearest = _pick(distances, k, engine, epsilon, seed, memory_limit_gib)
        assignment = assign(distances, picks, nearest)
    return Selection(
        indices=torch.from_numpy(picks),
        weights=torch.from_numpy(np.bincount(assignment, minlength=k).astype(np.float32)),
        gains=torch.from_numpy(gains * distances.scale),
        objective=float(nearest.sum(dtype=np.float64)) * distances.scale,
        assignment=torch.from_numpy(assignment),
        settings={"k": k, "engine": engine, "epsilon": epsilon, "seed": seed},
    )


def _fetched(on_device: tuple[Tensor, ...]) -> tuple[Integers, Doubles, Floats, Integers]:
    """All in one piece, for each would wait for the device; float64 holds them exactly."""
    together = torch.cat([values.double() for values in on_device]).cpu()
    picks, gains, nearest, assignment = (
        part.numpy() for part in together.split([len(values) for values in on_device])
    )
    whole, single = np.int64, np.float32
    return picks.astype(whole), gains, nearest.astype(single), assignment.astype(whole)


def _pick(
    distances: Distances | DeviceDistances,
    k: int,
    engine: Engine,
    epsilon: float,
    seed: int,
    memory_limit_gib: float,
) -> Picks:
    if engine == "lazy":
        return lazy(distances, k)
    if engine == "stochastic":
        return stochastic(distances, k, epsilon, seed)
    return greedy(distances, k, memory_limit_gib)


def _checked_points(gradients: Tensor | NDArray[Any], device: str | torch.device | None) -> Tensor:
    if isinstance(gradients, np.ndarray):
        if gradients.dtype.kind not in "fiub":
            raise DertsError(f"gradients have type {gradients.dtype}; give real numbers")
        # A copy: the array may be read-only or have strides that torch does not know.
        points = torch.from_numpy(np.array(gradients, dtype=_wide(gradients.dtype), order="C"))
    else:
        points = gradients.detach()
    if points.ndim != 2:
        shape = list(points.shape)
        raise DertsError(f"gradients have shape {shape}; give a matrix [rows, dimensions]")
    if 0 in points.shape:
        raise DertsError(f"gradients have shape {list(points.shape)}; nothing to select from")
    if points.is_complex():
        raise DertsError(f"gradients have type {points.dtype}; give real numbers")
    if points.dtype != torch.float64:
        points = points.to(torch.float32 if points.is_floating_point() else torch.float64)
    finite = torch.isfinite(points)
    if not bool(finite.all()):
        bad = (~finite.all(1)).nonzero()[:, 0]
        raise DertsError(
            f"row {int(bad[0])} of the gradients is not finite ({len(bad)} such rows of "
            f"{len(points)}); drop these rows, or lower the learning rate that made them"
        )
    if device is not None:
        points = points.to(device)
    return points


def _wide(kind: np.dtype[Any]) -> type[np.floating[Any]]:
    return np.float32 if kind.kind == "f" and kind.itemsize <= 4 else np.float64


def select_file(
    gradients: str | Path,
    k: int,
    out: str | Path,
    *,
    engine: Engine = "greedy",
    epsilon: float = 0.01,
    seed: int = 0,
    memory_limit_gib: float = 2.0,
    device: str | torch.device | None = None,
) -> Selection:
    """Selects ``k`` rows of the matrix in the .npy file ``gradients`` and writes JSON to ``out``.

    The JSON object has indices, weights, gains, objective, assignment and settings.
    """
    try:
        with Path(gradients).open("rb") as file:
            matrix = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise DertsError(f"cannot read {gradients}: {error.strerror}") from error
    except Exception as error:  # numpy parses the header as Python and lets any mistake through
        raise DertsError(
            f"{gradients} is not a .npy file of numbers; write one with numpy.save ({error})"
        ) from error
    selection = select(
        matrix,
        k,
        engine=engine,
        epsilon=epsilon,
        seed=seed,
        memory_limit_gib=memory_limit_gib,
        device=device,
    )
    try:
        selection.save(out)
    except OSError as error:
        raise DertsError(f"cannot write {out}: {error.strerror}") from error
    return selection
