"""GradMatch (Killamsetty et al., ICML 2021): weights whose weighted gradient is the pool's."""

import numpy as np
import torch
from numpy.typing import NDArray

from derts.selection.rounds import Choice, DrawnPool, PoolStrategy, Seed
from derts.selection.strategy import Context
from derts.tasks.randomness import generator

Numbers = NDArray[np.float64]
RIDGE = 0.5  # × the mean squared length of a gradient: keeps weights from piling up on few tasks


class GradMatch(PoolStrategy):
    """Orthogonal matching pursuit with non-negative weights, in one part of the pool per batch."""

    def choose(self, context: Context, drawn: DrawnPool, seed: Seed) -> Choice:
        estimate = self.estimate(context, drawn)
        gradients = estimate.gradients[self.config.estimate]
        usable = gradients.isfinite().all(1) & estimate.losses.isfinite()
        candidates = usable.nonzero().squeeze(1).cpu()
        count = self.wanted(len(candidates), len(gradients))
        parts = max(1, count // context.meta_batch)
        order = torch.randperm(len(candidates), generator=generator((*seed, "parts")))
        weights, batches = torch.zeros(len(gradients)), []
        for group in candidates[order].tensor_split(parts):
            rows = gradients[group.to(gradients.device)].double().cpu().numpy()
            found, fitted = match_gradients(rows, min(len(group), -(-count // parts)))
            batches.append(group[torch.from_numpy(found)])
            weights[batches[-1]] = torch.from_numpy(fitted).float()
        selected = torch.cat(batches)
        return Choice(tuple(batches), weights, selected, "gradmatch", estimate)


def match_gradients(
    gradients: Numbers, k: int, ridge: float = RIDGE
) -> tuple[NDArray[np.int64], Numbers]:
    """At most k rows of [N, d] and weights ≥ 0 whose weighted sum is near the rows' sum.

    Each step adds the row that points most along what is still missing, then fits all weights
    anew: w ≥ 0 minimises ‖Σ w g − Σ g‖² + λ‖w‖². Ends early when no row points that way.

    >>> rows = np.array([[1.0, 0.0], [1.1, 0.0], [0.0, 1.0]])
    >>> indices, weights = match_gradients(rows, k=2, ridge=1e-9)
    >>> indices.tolist(), weights.round(3).tolist()
    ([1, 2], [1.909, 1.0])
    """
    products = gradients @ gradients.T
    wanted = products.sum(1)
    level = ridge * float(products.trace()) / len(products)
    chosen: list[int] = []
    weights = np.zeros(0)
    for _ in range(k):
        missing = wanted - products[:, chosen] @ weights
        missing[chosen] = -np.inf
        best = int(missing.argmax())
        if missing[best] <= 0:
            break
        chosen.append(best)
        inner = products[np.ix_(chosen, chosen)] + level * np.eye(len(chosen))
        weights = non_negative_fit(inner, wanted[chosen], np.append(weights > 0, True))
    if not chosen or not weights.any():  # the rows add up to nothing: any of them is as good
        return np.arange(min(k, len(gradients))), np.ones(min(k, len(gradients)))
    return np.array(chosen), weights


def non_negative_fit(inner: Numbers, target: Numbers, start: NDArray[np.bool_]) -> Numbers:
    """w ≥ 0 that minimises wᵀ inner w / 2 − targetᵀ w, by Lawson and Hanson's active sets.

    `inner` [k, k] is positive definite; `start` says which weights are tried above 0 first.
    """
    free = start.copy()
    weights = np.zeros(len(target))
    for _ in range(10 * len(target)):
        while free.any():
            found = np.zeros(len(target))
            found[free] = np.linalg.solve(inner[np.ix_(free, free)], target[free])
            if found[free].min() > 0:
                break
            falling = free & (found <= 0)
            steps = weights[falling] / (weights[falling] - found[falling])
            weights += float(np.nan_to_num(steps).min()) * (found - weights)
            free &= ~(falling & (weights <= 1e-15))
            weights[~free] = 0.0
        else:
            found = np.zeros(len(target))
        weights = found
        rising = np.where(free, -np.inf, target - inner @ weights)
        if rising.max() <= 1e-12 * max(1.0, float(np.abs(target).max())):
            break
        free[int(rising.argmax())] = True
    return weights
