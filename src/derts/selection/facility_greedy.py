"""Exact greedy facility location: the same picks as K passes over all pairs, far cheaper.

The gain of candidate i is Σ_j max(0, m_j − D_ij), m_j the distance of row j to its nearest pick.
1. A few dozen picks on whole rows: after a pick only the rows whose nearest changed are visited.
2. Then few pairs are left that can still matter, those with D_ij < m_j (about N² / picks). They
   are listed once, and every later pick touches only the lists of the rows it changes.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from derts.selection.facility_matrix import QUICK_ERROR, Doubles, Floats, Integers, Matrix

DENSE_PICKS = 16
BYTES_PER_ENTRY = 24  # column and value, and the copies while the lists are made
SAMPLED_ROWS = 64
PREFETCHED_ROWS = 64


class Greedy:
    """Picks one candidate after the other; ties go to the lowest index.

    ``nearest`` float32 [N] is each row's distance to its nearest pick. ``gains`` float64 [N] are
    off by at most ``error`` while picks are dense, exact afterwards; a picked row has gain −∞.
    All in units of ``distances.scale``.
    """

    def __init__(self, distances: Matrix) -> None:
        self.distances = distances
        sums, largest = distances.totals()
        self.nearest: Floats = np.full(distances.count, largest, np.float32)
        self.gains: Doubles = distances.count * largest - sums
        self.error = QUICK_ERROR * float(sums.max())
        self.picks: list[int] = []
        self.picked_gains: list[float] = []
        self._prefetched: dict[int, Floats] = {}

    def _take(self, pick: int, gain: float) -> None:
        self.picks.append(pick)
        self.picked_gains.append(gain)

    def pick_densely(self) -> None:
        """One pick; visits the whole row of every row whose nearest changes.

        The gains are float32 sums with a bounded error; only candidates within that error of the
        best are summed exactly, which gives the exact answer at a fraction of the cost.
        """
        close = np.flatnonzero(self.gains >= self.gains.max() - 2 * self.error)
        exact = self.distances.exact_gains(close, self.nearest)
        best = int(exact.argmax())
        pick = int(close[best])
        self._take(pick, float(exact[best]))
        row = self.distances.row(pick)
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
        columns, values, starts = self.distances.below(self.nearest)
        bounds = starts.tolist()
        listed = [columns[a:b] for a, b in pairwise(bounds)]
        lengths = np.diff(starts)
        distances = [values[a:b] for a, b in pairwise(bounds)]
        nearest = self.nearest
        weights = nearest.repeat(lengths) - values.astype(np.float64)
        gains = np.bincount(columns, weights, len(nearest)).astype(np.float64)
        gains[self.picks] = -np.inf
        for _ in range(k - len(self.picks)):
            pick = int(gains.argmax())
            self._take(pick, float(gains[pick]))
            row = self._row(pick, gains)
            gains[pick] = -np.inf
            changed = (row < nearest).nonzero()[0]
            if not len(changed):
                continue
            new, old = row[changed], nearest[changed]
            nearest[changed] = new
            rows = changed.tolist()
            repeats = lengths[changed]
            high = old.repeat(repeats)
            clipped = np.concatenate([distances[j] for j in rows])
            np.maximum(clipped, new.repeat(repeats), out=clipped)
            np.minimum(clipped, high, out=clipped)
            lost = np.subtract(high, clipped, dtype=np.float64)
            np.subtract.at(gains, np.concatenate([listed[j] for j in rows]), lost)

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


def greedy(distances: Matrix, k: int, memory_limit_gib: float) -> tuple[Integers, Doubles, Floats]:
    """The exact greedy picks.

    Returns picks int64 [K], their gains float64 [K] and the distance of each row to its nearest
    pick, float32 [N], in units of ``distances.scale``.
    """
    state = Greedy(distances)
    limit = memory_limit_gib * 2**30 / BYTES_PER_ENTRY
    while len(state.picks) < k:
        state.pick_densely()
        if DENSE_PICKS <= len(state.picks) < k and state.entries() <= limit:
            state.pick_from_lists(k)
    return np.array(state.picks), np.array(state.picked_gains), state.nearest
