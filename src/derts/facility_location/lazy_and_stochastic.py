"""The two other engines: lazy greedy, and stochastic greedy from randomly drawn candidates."""

from __future__ import annotations

import math

import numpy as np

from derts.facility_location.distances import Distances, Doubles, Floats, Integers

Picks = tuple[Integers, Doubles, Floats]
LAZY_BATCH = 16


def lazy(distances: Distances, k: int) -> Picks:
    """Lazy greedy: old gains are upper bounds, so only the best few are summed again.

    The same picks and gains as exact greedy. Returns picks int64 [K], gains float64 [K] and each
    row's distance to its nearest pick, float32 [N], in units of ``distances.scale``.
    """
    count = distances.count
    largest = distances.totals()[1]
    nearest: Floats = np.full(count, largest, np.float32)
    everyone = np.arange(count)
    bounds = distances.exact_gains(everyone, nearest)
    picks: Integers = np.empty(k, np.int64)
    gains: Doubles = np.empty(k)
    for position in range(k):
        if position == 1:
            # Nothing of the first bounds is left, now that no row is as far as the largest.
            bounds = distances.exact_gains(everyone, nearest)
            bounds[picks[:1]] = -np.inf
        fresh = np.full(count, position < 2)
        while not fresh[best := int(bounds.argmax())]:
            top = np.argpartition(bounds, -min(LAZY_BATCH, count))[-LAZY_BATCH:]
            stale = top[~fresh[top] & (bounds[top] > -np.inf)]
            # Ties with the best may lie outside the top few; the best itself never may.
            stale = np.union1d(stale, [best])
            bounds[stale] = distances.exact_gains(stale, nearest)
            fresh[stale] = True
        picks[position], gains[position] = best, bounds[best]
        bounds[best] = -np.inf
        nearest = np.minimum(nearest, distances.row(best))
    return picks, gains, nearest


def stochastic(distances: Distances, k: int, epsilon: float, seed: int) -> Picks:
    """Stochastic greedy: each pick is the best of ⌈(N/K)·ln(1/ε)⌉ rows drawn without replacement.

    Within 1 − 1/e − ε of the optimum in expectation. Returns as :func:`lazy`.
    """
    count = distances.count
    generator = np.random.default_rng(seed)
    size = math.ceil(count / k * math.log(1 / epsilon))
    nearest: Floats = np.full(count, distances.totals()[1], np.float32)
    remaining = np.arange(count)
    picks: Integers = np.empty(k, np.int64)
    gains: Doubles = np.empty(k)
    for position in range(k):
        left = count - position
        places = generator.choice(left, min(size, left), replace=False, shuffle=False)
        drawn = np.sort(remaining[places])
        exact = distances.exact_gains(drawn, nearest)
        best = int(exact.argmax())
        picks[position], gains[position] = drawn[best], exact[best]
        # The last one fills the gap, so that no pick costs a pass over all rows.
        place = int(places[remaining[places] == drawn[best]][0])
        remaining[place] = remaining[left - 1]
        nearest = np.minimum(nearest, distances.row(int(drawn[best])))
    return picks, gains, nearest
