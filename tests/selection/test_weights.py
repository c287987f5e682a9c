"""Calibrated weights against a plain constrained solution, and the helpers around them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from derts.errors import DertsError
from derts.selection.derts import calibration, selection_weights
from derts.selection.rounds import with_mean_one
from derts.tasks import generator


def pool(rows: int = 60, dim: int = 7) -> torch.Tensor:
    values = torch.randn(rows, dim, dtype=torch.float64, generator=generator(3))
    return values * torch.arange(1, dim + 1) + 4.0


def chosen(count: int, rows: int = 60) -> torch.Tensor:
    return torch.randperm(rows, generator=generator(8))[:count]


def plain(gradients: torch.Tensor, indices: torch.Tensor, ridge: float) -> torch.Tensor:
    """The same problem through its Lagrangian, in the weights themselves."""
    g = gradients.numpy()
    g = (g - g.mean(0)) / np.sqrt(((g - g.mean(0)) ** 2).sum(1).mean())
    selected, count = g[indices.numpy()], len(indices)
    even = len(g) / count
    system = np.zeros((count + 1, count + 1))
    system[:count, :count] = selected @ selected.T + ridge * np.eye(count)
    system[:count, count] = system[count, :count] = 1
    right = np.append(selected @ g.sum(0) + ridge * even, len(g))
    return torch.from_numpy(np.linalg.solve(system, right)[:count])


@pytest.mark.parametrize("count", [4, 7, 8, 30])  # fewer, as many and more rows than dimensions
@pytest.mark.parametrize("ridge", [1e-3, 1.0, 50.0])
def test_calibration_solves_the_constrained_problem(count: int, ridge: float) -> None:
    weights = calibration(pool(), chosen(count), ridge)
    torch.testing.assert_close(weights, plain(pool(), chosen(count), ridge), rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(weights.sum(), torch.tensor(60.0).double())


def test_scale_and_place_of_the_gradients_do_not_matter() -> None:
    weights = calibration(pool(), chosen(20))
    torch.testing.assert_close(calibration(1e4 * pool() - 7, chosen(20)), weights)


def test_a_large_ridge_leaves_all_weights_alike() -> None:
    weights = calibration(pool(), chosen(20), ridge=1e12)
    torch.testing.assert_close(weights, torch.full((20,), 3.0).double())


def test_without_ridge_the_sums_meet() -> None:
    weights = calibration(pool(), chosen(8), ridge=0.0)
    torch.testing.assert_close(weights @ pool()[chosen(8)], pool().sum(0), rtol=1e-9, atol=1e-6)


def test_the_correction_brings_the_sum_nearer_and_keeps_weights_positive() -> None:
    few = chosen(20)
    weights = calibration(pool(), few).clamp(min=0)
    even = torch.full_like(weights, 3.0)
    assert bool((weights >= 0).all())

    def distance(w: torch.Tensor) -> float:
        return float((w @ pool()[few] - pool().sum(0)).norm())

    assert distance(weights) < 0.5 * distance(even)


def test_equal_rows_get_equal_weights() -> None:
    weights = calibration(torch.ones(6, 3), torch.tensor([0, 4]))
    torch.testing.assert_close(weights, torch.tensor([3.0, 3.0]))


@pytest.mark.parametrize("kind", ["counts", "none", "calibrated"])
def test_every_kind_has_mean_one(kind: str) -> None:
    counts = torch.tensor([50, 4, 3, 2, 1])
    weights = selection_weights(kind, pool().float(), chosen(5), counts)  # type: ignore[arg-type]
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.mean(), torch.tensor(1.0))


def test_counts_are_kept_in_proportion() -> None:
    counts, rows = torch.tensor([7.0, 1.0, 1.0]), torch.zeros(9, 2)
    plain_counts = selection_weights("counts", rows, torch.arange(3), counts)
    torch.testing.assert_close(plain_counts, counts / 3)


def test_mistakes_are_named() -> None:
    with pytest.raises(DertsError, match="cannot be scaled"):
        with_mean_one(torch.zeros(3))
    with pytest.raises(DertsError, match="cannot be scaled"):
        with_mean_one(torch.tensor([1.0, float("nan")]))


def test_weights_that_calibration_wants_below_zero_are_zero() -> None:
    rows = torch.cat((torch.full((40, 1), -5.0), torch.tensor([[1.0], [20.0]])))
    indices = torch.tensor([40, 41])
    assert float(calibration(rows, indices).min()) < 0
    weights = selection_weights("calibrated", rows, indices, torch.ones(2))
    assert weights.tolist() == [2.0, 0.0]
