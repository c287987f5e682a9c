"""Exact greedy facility location: the same picks as K passes over all pairs, far cheaper.

The gain of candidate i is Σ_j max(0, m_j − D_ij), m_j the distance of row j to its nearest pick.
1. A few dozen picks on whole rows: after a pick only the rows whose nearest changed are visited.
2. Then few pairs are left that can still matter, those with D_ij < m_j (about N² / picks). They
   are listed once, and every later pick touches only the lists of the rows it changes.
3. Once lists are so short that many candidates do not meet, those are picked together, in rounds.
"""

from __future__ import annotations

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
LISTED_PER_ROW = 20  # with more, it is too early for rounds
ROUND_PICKS, ENTRIES_PER_PICK = 5, 3000  # one pick costs about as much as a round's share of these
SOON = 0.85  # of the best gain: these are picked before long
LIST_GROWTH = 1.7  # of the number of picks until lists are shortened
GROWTH = 1.4  # of the number of picks until lists are looked at again
BYTES_PER_ENTRY = 24  # column and value, and the copies while the lists are made
SAMPLED_ROWS = 32
PREFETCHED_ROWS = 64


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
        self._prefetched: dict[int, Floats] = {}

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
            if len(lists[0]) <= LISTED_PER_ROW * len(lengths) and rounds_pay(lists, gains):
                wanted = k - len(self.picks)
                picks, picked_gains = pick_in_rounds(lists, self.nearest, gains, wanted)
                self.picks += picks.tolist()
                self.picked_gains += picked_gains.tolist()
                return
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
            row = self._row(pick, gains)
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


def rounds_pay(lists: Entries, gains: Doubles) -> bool:
    """Whether a round would now pick enough candidates to be worth its passes over the lists.

    Only those with large gains count: they come soon, and the others could wait for later rounds.
    """
    columns, rows = flat_lists(lists)
    chosen = members(columns[locally_best(columns, rows, gains)], len(gains))
    soon = np.count_nonzero(gains[chosen] >= SOON * gains.max())
    return bool(soon > ROUND_PICKS + len(columns) / ENTRIES_PER_PICK)


def members(indices: Integers, count: int) -> Integers:
    """``indices`` without repeats, in order; faster than sorting them."""
    present = np.zeros(count, np.bool_)
    present[indices] = True
    return np.flatnonzero(present)


def flat_lists(lists: Entries) -> tuple[Integers, Integers]:
    """Column and row of each entry, int64 [E]."""
    return lists[0].astype(np.int64), np.arange(len(lists[2]) - 1).repeat(np.diff(lists[2]))


def pick_in_rounds(
    lists: Entries, nearest: Floats, gains: Doubles, k: int
) -> tuple[Integers, Doubles]:
    """The next ``k`` picks of greedy, many at a time; updates ``nearest`` and spoils ``gains``.

    A candidate whose gain is the best in the lists of all rows that list it keeps this gain until
    greedy picks it: only candidates that share a row with it could change it, and all of them come
    later. So each round picks all such candidates at once, and the order is restored at the end by
    gain, then index. Rounds go on until no candidate left could be among the first ``k``.
    """
    count, values = len(nearest), lists[1]
    columns, rows = flat_lists(lists)
    caps = nearest.astype(np.float64)
    picks: Integers = np.empty(0, np.int64)
    picked_gains: Doubles = np.empty(0)
    served: list[tuple[Integers, Integers, Floats]] = []
    while len(columns):
        at = locally_best(columns, rows, gains)
        served.append((columns[at], rows[at], values[at]))
        chosen = members(columns[at], count)
        picks = np.concatenate([picks, chosen])
        picked_gains = np.concatenate([picked_gains, gains[chosen]])
        lower = caps.copy()
        lower[rows[at]] = values[at]
        touched = np.flatnonzero((lower < caps)[rows])
        column, row, value = columns[touched], rows[touched], values[touched]
        low = lower[row]
        gains -= np.bincount(column, caps[row] - np.maximum(value, low), count)
        gains[chosen] = -np.inf
        caps = lower
        left = np.ones(len(columns), np.bool_)
        left[touched] = value < low
        if len(picks) >= k:
            needed = np.partition(picked_gains, len(picks) - k)[len(picks) - k]
            left &= (gains >= needed)[columns]
        columns, rows, values = columns[left], rows[left], values[left]
    order = np.lexsort((picks, -picked_gains))[:k]
    # Where nothing is left to gain: the lowest indices, as in any other tie.
    idle = np.flatnonzero(gains > -np.inf)[: k - len(order)]
    picks = np.concatenate([picks[order], idle])
    accepted = np.isin(np.arange(count), picks)
    for pick, row, new in served:
        mine = accepted[pick]
        nearest[row[mine]] = new[mine]
    return picks, np.concatenate([picked_gains[order], np.zeros(len(idle))])


def locally_best(columns: Integers, rows: Integers, gains: Doubles) -> Integers:
    """Entries of the candidates that are best in the lists of all rows that list them."""
    begins = np.flatnonzero(np.diff(rows, prepend=-1))
    listed_gains = gains[columns]
    best = np.maximum.reduceat(listed_gains, begins)
    top = np.flatnonzero(listed_gains == best.repeat(np.diff(begins, append=len(rows))))
    # Of equal gains the lowest index, which comes first in the list, is the better.
    top = top[np.diff(rows[top], prepend=-1) > 0]
    times_best, listed = (np.bincount(x, minlength=len(gains)) for x in (columns[top], columns))
    winners: Integers = top[(times_best == listed)[columns[top]]]
    return winners


def greedy(
    distances: Distances, k: int, memory_limit_gib: float
) -> tuple[Integers, Doubles, Floats]:
    """The exact greedy picks int64 [K], their gains float64 [K] and the distance of each row to its
    nearest pick, float32 [N], in units of ``distances.scale``.
    """
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
