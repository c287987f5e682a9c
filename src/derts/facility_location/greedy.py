"""The engines. Exact greedy: the same picks as K passes over all pairs, far cheaper.

The gain of candidate i is Σ_j max(0, m_j − D_ij), m_j the distance of row j to its nearest pick.
1. A few dozen picks on whole rows: after a pick only the rows whose nearest changed are visited.
2. Then few pairs are left that can still matter, those with D_ij < m_j (about N² / picks). They
   are listed once, and every later pick touches only the lists of the rows it changes.

Lazy greedy gives the same picks, stochastic greedy those among randomly drawn candidates.
"""

import math

import numpy as np

from derts.facility_location.distances import Distances, Doubles, Entries, Floats, Integers

LISTED_SHARE = 1 / 50  # of all pairs; with more, whole rows are faster than lists
LIST_GROWTH = 1.7  # of the number of picks until lists are shortened
GROWTH = 1.4  # of the number of picks until lists are looked at again
BYTES_PER_ENTRY = 24  # column and value, and the copies while the lists are made
SAMPLED_ROWS = 32
PREFETCHED_ROWS = 64
LAZY_BATCH = 16

Picks = tuple[Integers, Doubles, Floats]
"""Picks int64 [K], gains float64 [K] and distances to the nearest pick, float32 [N], scaled."""


class Greedy:
    """Picks one candidate after the other; ties go to the lowest index.

    ``nearest`` float32 [N] is each row's distance to its nearest pick, ``gains`` float64 [N] what
    each row would gain; a picked row's is −∞. All in units of ``distances.scale``.
    """

    def __init__(self, distances: Distances) -> None:
        self.distances = distances
        sums, largest = distances.totals()
        self.nearest: Floats = np.full(distances.count, largest, np.float32)
        self.gains: Doubles = distances.count * largest - sums
        self.picks: list[int] = []
        self.picked_gains: list[float] = []
        self._prefetched: dict[int, Floats] = {}

    def pick_densely(self) -> None:
        """One pick; visits the whole row of every row whose nearest changes."""
        pick = self._pick(self.gains)
        row = self.distances.row(pick)
        changed = np.flatnonzero(row < self.nearest)
        self.gains -= self.distances.lost_gains(changed, row[changed], self.nearest[changed])
        self.nearest = np.minimum(self.nearest, row)

    def _pick(self, gains: Doubles) -> int:
        pick = int(gains.argmax())
        self.picks.append(pick)
        self.picked_gains.append(float(gains[pick]))
        gains[pick] = -np.inf
        return pick

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
            row = self._row(self._pick(gains), gains)
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

    def _row(self, pick: int, gains: Doubles) -> Floats:
        """The pick's row; where a row alone is dear, with those of the next likely picks."""
        if self.distances.cheap_rows:
            return self.distances.row(pick)
        if pick not in self._prefetched:
            likely = np.argpartition(gains, -min(PREFETCHED_ROWS, len(gains)))[-PREFETCHED_ROWS:]
            likely = np.union1d(likely, [pick])
            rows = self.distances.rows(likely)
            self._prefetched = dict(zip(likely.tolist(), rows, strict=True))
        return self._prefetched[pick]

    def entries(self) -> int:
        """About how many pairs the lists would hold now, from evenly spread rows."""
        count = self.distances.count
        sample = np.unique(np.linspace(0, count - 1, SAMPLED_ROWS).astype(np.int64))
        mask = self.distances.rows(sample) < self.nearest[sample, None]
        return int(np.count_nonzero(mask) / len(sample) * count)


def greedy(distances: Distances, k: int, memory_limit_gib: float) -> Picks:
    """The exact greedy picks."""
    state = Greedy(distances)
    limit = min(LISTED_SHARE * distances.count**2, memory_limit_gib * 2**30 / BYTES_PER_ENTRY)
    look_again = 1.0
    while len(state.picks) < k:
        state.pick_densely()
        if look_again <= len(state.picks) < k:
            look_again = GROWTH * len(state.picks)
            if state.entries() <= limit:
                state.pick_from_lists(k)
    return np.array(state.picks), np.array(state.picked_gains), state.nearest


def lazy(distances: Distances, k: int) -> Picks:
    """Lazy greedy: old gains are upper bounds, so only the best few are summed again.

    The same picks and gains as exact greedy.
    """
    count = distances.count
    nearest: Floats = np.full(count, distances.totals()[1], np.float32)
    bounds = distances.gains(np.arange(count), nearest)
    picks: list[int] = []
    gains: list[float] = []
    while len(picks) < k:
        fresh = np.full(count, not picks)
        while not fresh[best := int(bounds.argmax())]:
            top = np.argpartition(bounds, -min(LAZY_BATCH, count))[-LAZY_BATCH:]
            stale = top[~fresh[top] & (bounds[top] > -np.inf)]
            # Ties with the best may lie outside the top few; the best itself never may.
            stale = np.union1d(stale, [best])
            bounds[stale] = distances.gains(stale, nearest)
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
        exact = distances.gains(drawn, nearest)
        best = int(exact.argmax())
        picks.append(int(drawn[best]))
        gains.append(float(exact[best]))
        # The last one fills the gap, so that no pick costs a pass over all rows.
        place = int(places[remaining[places] == drawn[best]][0])
        remaining[place] = remaining[left - 1]
        nearest = np.minimum(nearest, distances.row(picks[-1]))
    return np.array(picks), np.array(gains), nearest
