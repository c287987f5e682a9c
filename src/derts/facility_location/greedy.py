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

from derts.facility_location.distances import (
    QUICK_ERROR,
    Distances,
    Doubles,
    Entries,
    Floats,
    Integers,
)

LISTED_SHARE = 1 / 50  # of all pairs; with more, whole rows are faster than lists
LIST_GROWTH = 1.7  # of the number of picks until lists are shortened
GROWTH = 1.4  # of the number of picks until lists are looked at again
BYTES_PER_ENTRY = 24  # column and value, and the copies while the lists are made
SAMPLED_ROWS = 32

Picks = tuple[Integers, Doubles, Floats]
"""Picks int64 [K], gains float64 [K] and distances to the nearest pick, float32 [N], scaled."""


class Greedy:
    """Picks one candidate after the other; ties go to the lowest index.

    ``nearest`` float32 [N] is each row's distance to its nearest pick. ``gains`` float64 [N] are
    off by at most ``error`` while picks are dense, exact afterwards; a picked row has gain −∞.
    All in units of ``distances.scale``.
    """

    def __init__(self, distances: Distances) -> None:
        self.distances = distances
        sums, largest = distances.totals()
        self.nearest: Floats = np.full(distances.count, largest, np.float32)
        self.gains: Doubles = distances.count * largest - sums
        self.error = QUICK_ERROR * float(sums.max())
        self.picks: list[int] = []
        self.picked_gains: list[float] = []

    def pick_densely(self) -> None:
        """One pick; visits the whole row of every row whose nearest changes.

        Only candidates within the error of the best are summed exactly.
        """
        close = np.flatnonzero(self.gains >= self.gains.max() - 2 * self.error)
        exact = self.distances.exact_gains(close, self.nearest)
        best = int(exact.argmax())
        self.picks.append(int(close[best]))
        self.picked_gains.append(float(exact[best]))
        row = self.distances.row(self.picks[-1])
        changed = np.flatnonzero(row < self.nearest)
        old, new = self.nearest[changed], row[changed]
        self.nearest = np.minimum(self.nearest, row)
        if len(self.picks) == 1:
            self.gains = self.distances.gains(self.nearest)
            self.error = QUICK_ERROR * float(self.gains.max())
        else:
            lost = self.distances.lost_gains(changed, new, old)
            self.gains -= lost
            self.error += QUICK_ERROR * float(lost.max())
        self.gains[self.picks] = -np.inf

    def pick_from_lists(self, k: int) -> None:
        """Picks until there are ``k``; visits only listed pairs."""
        lists = self.distances.below(self.nearest)
        lengths = np.diff(lists[2])
        weights = self.nearest.repeat(lengths) - lists[1].astype(np.float64)
        gains = np.bincount(lists[0], weights, len(lengths)).astype(np.float64)
        gains[self.picks] = -np.inf
        while len(self.picks) < k:
            self._pick_one_by_one(lists, gains, min(k, math.ceil(LIST_GROWTH * len(self.picks))))
            columns, values, starts = lists  # of which only some pairs still matter
            left = np.flatnonzero(values < self.nearest.repeat(np.diff(starts)))
            lists = columns[left], values[left], np.searchsorted(left, starts)

    def _pick_one_by_one(self, lists: Entries, gains: Doubles, k: int) -> None:
        columns, values, starts = lists
        begins, lengths, nearest = starts[:-1], np.diff(starts), self.nearest
        while len(self.picks) < k:
            pick = int(gains.argmax())
            self.picks.append(pick)
            self.picked_gains.append(float(gains[pick]))
            row = self.distances.row(pick)
            gains[pick] = -np.inf
            changed = (row < nearest).nonzero()[0]
            if not len(changed):
                continue
            new, old = row.take(changed), nearest.take(changed)
            nearest[changed] = new
            repeats = lengths.take(changed)
            ends = repeats.cumsum()
            at = (begins.take(changed) - ends + repeats).repeat(repeats)
            at += np.arange(len(at))
            high = old.repeat(repeats)
            clipped = values.take(at)
            np.maximum(clipped, new.repeat(repeats), out=clipped)
            np.minimum(clipped, high, out=clipped)
            lost = np.subtract(high, clipped, dtype=np.float64)
            np.subtract.at(gains, columns.take(at).astype(np.int64), lost)


def greedy(distances: Distances, k: int, memory_limit_gib: float) -> Picks:
    """The exact greedy picks."""
    state = Greedy(distances)
    limit = min(LISTED_SHARE * distances.count**2, memory_limit_gib * 2**30 / BYTES_PER_ENTRY)
    sample = np.unique(np.linspace(0, distances.count - 1, SAMPLED_ROWS).astype(np.int64))
    look_again = 1.0
    while len(state.picks) < k:
        state.pick_densely()
        if look_again <= len(state.picks) < k:
            look_again = GROWTH * len(state.picks)
            near = distances.rows(sample) < state.nearest[sample, None]
            if near.mean() * distances.count**2 <= limit:
                state.pick_from_lists(k)
    return np.array(state.picks), np.array(state.picked_gains), state.nearest


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
