"""The two other engines: lazy greedy, and stochastic greedy from randomly drawn candidates."""

from __future__ import annotations

import math

import numpy as np

from derts.facility_location.distances import Distances, Doubles, Floats, Integers

Picks = tuple[Integers, Doubles, Floats]
"""Picks int64 [K], gains float64 [K] and distances to the nearest pick, float32 [N], scaled."""
LAZY_BATCH = 16


def lazy(distances: Distances, k: int) -> Picks:
    """Lazy greedy: old gains are upper bounds, so only the best few are summed again.

    The same picks and gains as exact greedy.
    """
    count, everyone = distances.count, np.arange(distances.count)
    nearest: Floats = np.full(count, distances.totals()[1], np.float32)
    bounds = distances.exact_gains(everyone, nearest)
    picks: list[int] = []
    gains: list[float] = []
    while len(picks) < k:
        if len(picks) == 1:
            # Nothing of the first bounds is left, now that no row is as far as the largest.
            bounds = distances.exact_gains(everyone, nearest)
            bounds[picks] = -np.inf
        fresh = np.full(count, len(picks) < 2)
        while not fresh[best := int(bounds.argmax())]:
            top = np.argpartition(bounds, -min(LAZY_BATCH, count))[-LAZY_BATCH:]
            stale = top[~fresh[top] & (bounds[top] > -np.inf)]
            # Ties with the best may lie outside the top few; the best itself never may.
            stale = np.union1d(stale, [best])
            bounds[stale] = distances.exact_gains(stale, nearest)
            fresh[stale] = True
        picks.append(best)
        gains.append(float(bounds[best]))
        bounds[best] = -np.inf
        nearest = np.minimum(nearest, distances.row(best))
    return np.array(picks), np.array(gains), nearest


def stochastic(distances: Distances, k: int, epsilon: float, seed: int) -> Picks:
    """Stochastic greedy: each pick is the best of ⌈(N/K)·ln(1/ε)⌉ rows drawn without replacement.

    Within 1 − 1/e − ε of the optimum in expectation.
    """
    count, generator = distances.count, np.random.default_rng(seed)
    size = math.ceil(count / k * math.log(1 / epsilon))
    nearest: Floats = np.full(count, distances.totals()[1], np.float32)
    remaining = np.arange(count)
    picks: list[int] = []
    gains: list[float] = []
    for left in range(count, count - k, -1):
        places = generator.choice(left, min(size, left), replace=False, shuffle=False)
        drawn = np.sort(remaining[places])
        exact = distances.exact_gains(drawn, nearest)
        best = int(exact.argmax())
        picks.append(int(drawn[best]))
        gains.append(float(exact[best]))
        # The last one fills the gap, so that no pick costs a pass over all rows.
        place = int(places[remaining[places] == drawn[best]][0])
        remaining[place] = remaining[left - 1]
        nearest = np.minimum(nearest, distances.row(picks[-1]))
    return np.array(picks), np.array(gains), nearest
