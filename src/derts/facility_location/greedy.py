"""The engines. Exact greedy: the same picks as K passes over all pairs, far cheaper.

The gain of candidate i is Σ_j max(0, m_j − D_ij), m_j the distance of row j to its nearest pick.
1. A few dozen picks on whole rows: after a pick only the rows whose nearest changed are visited.
2. Then few pairs are left that can still matter, those with D_ij < m_j (about N² / picks). They
   are listed once, and every later pick touches only the lists of the rows it changes.

Lazy greedy gives the same picks, stochastic greedy those among randomly drawn candidates.
"""

import heapq
import math

import numpy as np

from derts.facility_location.distances import QUICK_ERROR, Distances, Doubles, Floats, Integers

LISTED_SHARE = 1 / 50  # of all pairs; with more, whole rows are faster than lists
LIST_GROWTH = 1.7  # of the number of picks until lists are shortened
GROWTH = 1.4  # of the number of picks until lists are looked at again
BYTES_PER_ENTRY = 24  # column and value, and the copies while the lists are made
SAMPLED_ROWS = 32
MANY_CANDIDATES = 64  # for one pick: drawing them together takes their number squared

Picks = tuple[Integers, Doubles, Floats]
"""Picks int64 [K], gains float64 [K] and distances to the nearest pick, float32 [N], scaled."""


def greedy(distances: Distances, k: int, memory_limit_gib: float) -> Picks:
    """The exact greedy picks; ties go to the lowest index."""
    count = distances.count
    limit = min(LISTED_SHARE * count**2, memory_limit_gib * 2**30 / BYTES_PER_ENTRY)
    sample = np.unique(np.linspace(0, count - 1, SAMPLED_ROWS).astype(np.int64))
    sums, largest = distances.totals()
    nearest: Floats = np.full(count, largest, np.float32)
    gains = count * largest - sums  # off by at most the error; of a picked row −∞
    error = QUICK_ERROR * float(sums.max())
    picks: list[int] = []
    picked_gains: list[float] = []
    look_again = 1.0
    while len(picks) < k:
        # Only candidates within the error of the best are summed exactly.
        close = np.flatnonzero(gains >= gains.max() - 2 * error)
        exact = distances.exact_gains(close, nearest)
        best = int(exact.argmax())
        picks.append(int(close[best]))
        picked_gains.append(float(exact[best]))
        row = distances.row(picks[-1])
        changed = np.flatnonzero(row < nearest)
        old, new = nearest[changed], row[changed]
        nearest[changed] = new
        if len(picks) == 1:
            gains = distances.gains(nearest)
            error = QUICK_ERROR * float(gains.max())
        else:
            lost = distances.lost_gains(changed, new, old)
            gains -= lost
            error += QUICK_ERROR * float(lost.max())
        gains[picks] = -np.inf
        if look_again <= len(picks) < k:
            look_again = GROWTH * len(picks)
            near = distances.rows(sample) < nearest[sample, None]
            if near.mean() * count**2 <= limit:
                _pick_from_lists(distances, k, picks, picked_gains, nearest)
    return np.array(picks), np.array(picked_gains), nearest


def _pick_from_lists(
    distances: Distances, k: int, picks: list[int], picked_gains: list[float], nearest: Floats
) -> None:
    """Adds to what `greedy` has found until there are ``k`` picks; visits only listed pairs."""
    columns, values, starts = distances.below(nearest)
    lengths = np.diff(starts)
    weights = nearest.repeat(lengths) - values.astype(np.float64)
    gains = np.bincount(columns, weights, len(lengths)).astype(np.float64)
    gains[picks] = -np.inf
    shorten = LIST_GROWTH * len(picks)
    while len(picks) < k:
        if len(picks) >= shorten:  # of the listed pairs only some still matter
            left = np.flatnonzero(values < nearest.repeat(lengths))
            columns, values, starts = columns[left], values[left], np.searchsorted(left, starts)
            lengths, shorten = np.diff(starts), LIST_GROWTH * len(picks)
        pick = int(gains.argmax())
        picks.append(pick)
        picked_gains.append(float(gains[pick]))
        gains[pick] = -np.inf
        row = distances.row(pick)
        changed = (row < nearest).nonzero()[0]
        if not len(changed):
            continue
        new, old = row.take(changed), nearest.take(changed)
        nearest[changed] = new
        repeats = lengths.take(changed)
        ends = repeats.cumsum()
        at = (starts.take(changed) - ends + repeats).repeat(repeats)
        at += np.arange(len(at))
        high = old.repeat(repeats)
        clipped = values.take(at)
        np.maximum(clipped, new.repeat(repeats), out=clipped)
        np.minimum(clipped, high, out=clipped)
        lost = np.subtract(high, clipped, dtype=np.float64)
        np.subtract.at(gains, columns.take(at).astype(np.int64), lost)


def lazy(distances: Distances, k: int, counts: Floats | None = None) -> Picks:
    """Lazy greedy: old gains are upper bounds, so only the highest is looked at again.

    The same picks and gains as exact greedy. With `counts` [N] each row counts that often.
    """
    nearest: Floats = np.full(distances.count, distances.totals()[1], np.float32)

    def gain(row: int) -> float:
        # The smaller of two float32 is exact; their difference would not be.
        left = np.minimum(nearest, distances.row(row))
        fallen = np.subtract(nearest, left, dtype=np.float64)
        return float(fallen.sum() if counts is None else counts @ fallen)

    bounds = [(-gain(row), row, 0) for row in range(distances.count)]
    heapq.heapify(bounds)
    picks: list[int] = []
    gains: list[float] = []
    while len(picks) < k:
        bound, row, picked = heapq.heappop(bounds)
        if picked < len(picks):
            heapq.heappush(bounds, (-gain(row), row, len(picks)))
        else:  # nothing was picked since: no other row can gain more
            picks.append(row)
            gains.append(-bound)
            nearest = np.minimum(nearest, distances.row(row))
    return np.array(picks), np.array(gains), nearest


def stochastic(distances: Distances, places: Integers) -> Picks:
    """Stochastic greedy: each pick is the best of some rows drawn by `candidate_places`.

    Of ⌈(N/K)·ln(1/ε)⌉, so within 1 − 1/e − ε of the optimum in expectation.
    """
    count = distances.count
    nearest: Floats = np.full(count, distances.totals()[1], np.float32)
    remaining = np.arange(count)
    picks: list[int] = []
    gains: list[float] = []
    for number, drawn_places in enumerate(places):
        left = count - number
        at = drawn_places[:left]
        drawn = np.sort(remaining[at])
        exact = distances.exact_gains(drawn, nearest)
        best = int(exact.argmax())
        picks.append(int(drawn[best]))
        gains.append(float(exact[best]))
        # The last one fills the gap, so that no pick costs a pass over all rows.
        remaining[at[remaining[at] == drawn[best]][0]] = remaining[left - 1]
        nearest = np.minimum(nearest, distances.row(picks[-1]))
    return np.array(picks), np.array(gains), nearest


def candidate_places(count: int, k: int, epsilon: float, seed: int) -> Integers:
    """Which of the rows that are left are looked at for each pick: places int64 [K, size].

    Different ones in every row (Floyd's method); where fewer than `size` are left, all of them
    come first.
    """
    size = min(count, math.ceil(count / k * math.log(1 / epsilon)))
    generator, left = np.random.default_rng(seed), count - np.arange(k)
    if size > MANY_CANDIDATES:
        drawn = [
            generator.choice(int(n), min(size, int(n)), replace=False, shuffle=False) for n in left
        ]
        return np.stack([np.pad(places, (0, size - len(places))) for places in drawn])
    fractions = generator.random((k, size))
    found = np.empty((k, size), np.int64)
    for column in range(size):
        most = np.maximum(left - size + column, 0)
        place = (fractions[:, column] * (most + 1)).astype(np.int64)
        taken = (found[:, :column] == place[:, None]).any(1)
        found[:, column] = np.where(taken, most, place)
    few = left < size
    found[few] = np.arange(size)
    return found
