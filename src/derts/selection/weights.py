"""How much each selected row counts, so that the selection stands for its pool."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from derts.errors import DertsError

Weighting = Literal["counts", "none", "calibrated"]

# An estimate sees part of a task's gradient; what it does not see adds Σ w² × its variance to the
# error. 1 takes that variance to be as large as the variance of the estimates.
RIDGE = 1.0


def selection_weights(
    kind: Weighting, gradients: Tensor, indices: Tensor, counts: Tensor
) -> Tensor:
    """Weights [K] of the selected rows, mean 1, on the device of `counts`.

    counts      how many rows of the pool each stands for (γ, the paper)
    none        all alike
    calibrated  all alike, corrected so that the weighted sum meets the pool's sum

    gradients [N, d] are the pool's, indices [K] the selected rows, counts [K] their γ.

    >>> pool = torch.tensor([[0.0], [0.1], [5.0]])
    >>> selection_weights("counts", pool, torch.tensor([1, 2]), torch.tensor([2.0, 1.0]))
    tensor([1.3333, 0.6667])
    """
    weights = counts if counts.is_floating_point() else counts.float()
    if kind == "none":
        weights = torch.ones_like(weights)
    elif kind == "calibrated":
        weights = calibration(gradients, indices).clamp(min=0).to(weights)
    return scale_to_mean_one(weights)


def calibration(gradients: Tensor, indices: Tensor, ridge: float = RIDGE) -> Tensor:
    """Weights [K] near N/K, perhaps negative, whose weighted sum of rows is near that of all rows.

    w = N/K + δ with Σδ = 0 minimises ‖Σ w g − Σ_pool g‖² + λ‖δ‖², where g are the gradients
    [N, d] less the pool's mean, scaled to a mean squared length of 1 and λ = ridge. A large ridge
    leaves all weights alike; with none and K > d the sums meet.

    >>> calibration(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0, 1]), 1e-9).round()
    tensor([0., 3.])
    """
    pool, count = gradients.detach(), len(indices)
    length = pool.var(0, correction=0).sum().double().sqrt()
    even = len(pool) / count
    weights = torch.full((count,), even, dtype=torch.float64, device=pool.device)
    if float(length) > 0:
        chosen = pool[indices.to(pool.device)].double() - pool.mean(0, dtype=torch.float64)
        chosen = chosen / length
        missing = -even * chosen.sum(0)  # the centred pool sums to 0
        # Σδ = 0 lets each row lose the selection's mean: what is left is a plain ridge problem
        # that is blind to directions in which all selected rows agree.
        weights = weights + _ridge(chosen - chosen.mean(0), missing, max(ridge, 1e-12))
    return weights.to(pool.dtype)


def scale_to_mean_one(weights: Tensor) -> Tensor:
    """Weights [K] scaled so that their mean is 1.

    >>> scale_to_mean_one(torch.tensor([1.0, 3.0]))
    tensor([0.5000, 1.5000])
    """
    mean = float(weights.mean()) if len(weights) else 0.0
    if not (0 < mean < float("inf")):
        raise DertsError(
            f"{len(weights)} weights with mean {mean} cannot be scaled to mean 1; select rows "
            "with finite gradients, or use the weights 'none'"
        )
    return weights / mean


def _ridge(rows: Tensor, target: Tensor, ridge: float) -> Tensor:
    """δ [K] minimising ‖rowsᵀ δ − target‖² + ridge ‖δ‖² for centred rows [K, d]."""
    count, dim = rows.shape
    identity = torch.eye(min(count, dim), dtype=rows.dtype, device=rows.device)
    if dim <= count:
        solution: Tensor = rows @ torch.linalg.solve(rows.T @ rows + ridge * identity, target)
    else:
        solution = torch.linalg.solve(rows @ rows.T + ridge * identity, rows @ target)
    return solution
