"""Has a sample one mode or two, and where do two part?"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

LEAST = 16  # fewer numbers say nothing about modes
POINTS = 512  # of the distribution function that the dip looks at


class Dip(NamedTuple):
    """How far a sample is from one mode, √N × dip, and two of its numbers around the valley."""

    size: float
    low: float
    high: float


def find_dip(ordered: Numbers) -> Dip:
    """Hartigan's dip of sorted numbers: their distance from the nearest sample with one mode.

    With a single mode at m the distribution function is convex before m and concave after it.
    The further right m is, the more the left side can offend, the less the right side: the dip is
    half the offence where the two balance, and the valley lies between the worst offenders.

    >>> dip = find_dip(np.concatenate((np.linspace(0, 1, 50), np.linspace(4, 5, 50))))
    >>> dip.size > 1, dip.low < 1.1, dip.high
    (True, True, 4.0)
    """
    count = len(ordered)
    if count < LEAST or ordered[0] == ordered[-1]:
        return Dip(0.0, math.nan, math.nan)
    chosen = np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(np.int64))
    x = (ordered[chosen] - ordered[0]) / (ordered[-1] - ordered[0])
    below, above = chosen / count, 1 - (chosen + 1) / count

    rising, falling = _Minorants(x, below), _Minorants(-x[::-1], above[::-1])

    def left(mode: int) -> tuple[float, int]:
        return rising.worst(mode)

    def right(mode: int) -> tuple[float, int]:
        gap, place = falling.worst(len(x) - 1 - mode)
        return gap, len(x) - 1 - place

    low, high = 0, len(x) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if left(middle)[0] > right(middle)[0]:
            high = middle
        else:
            low = middle
    found = min((low, high), key=lambda mode: max(left(mode)[0], right(mode)[0]))
    (gap_left, start), (gap_right, end) = left(found), right(found)
    dip = max(gap_left, gap_right) / 2
    return Dip(math.sqrt(count) * dip, float(ordered[chosen[start]]), float(ordered[chosen[end]]))


class _Minorants:
    """Greatest convex minorants of the first points (x ascending, y), for every number of them."""

    def __init__(self, x: Numbers, y: Numbers) -> None:
        self.x, self.y = x, y
        self.before: list[int] = []  # the corner before each point when it is the last one
        corners: list[int] = []
        xs, ys = x.tolist(), y.tolist()
        for here in range(len(xs)):
            while len(corners) > 1:
                a, b = corners[-2], corners[-1]
                if (ys[b] - ys[a]) * (xs[here] - xs[a]) < (ys[here] - ys[a]) * (xs[b] - xs[a]):
                    break
                corners.pop()
            self.before.append(corners[-1] if corners else -1)
            corners.append(here)

    def worst(self, last: int) -> tuple[float, int]:
        """How far, and where, the points up to `last` lie highest above their minorant."""
        corners = [last]
        while self.before[corners[-1]] >= 0:
            corners.append(self.before[corners[-1]])
        corners.reverse()
        x, y = self.x[: last + 1], self.y[: last + 1]
        gaps = y - np.interp(x, x[corners], y[corners])
        place = int(gaps.argmax())
        return float(gaps[place]), place


def find_valley(ordered: Numbers, dip: Dip) -> float:
    """Where between the two modes the density of the sorted numbers is lowest.

    >>> numbers = np.concatenate((np.linspace(0, 1, 50), np.linspace(4, 5, 50)))
    >>> 1 < find_valley(numbers, find_dip(numbers)) < 4
    True
    """
    middle = (dip.low + dip.high) / 2
    parts = (ordered[ordered <= middle], ordered[ordered > middle])
    within = sum(float(part.var()) * len(part) for part in parts if len(part)) / len(ordered)
    # half of Silverman's width, or the narrower mode would spread over the valley
    width = max(0.45 * math.sqrt(within) * len(ordered) ** -0.2, 1e-9 * (dip.high - dip.low))
    if width == 0:
        return dip.low
    grid = np.linspace(dip.low, dip.high, 128)
    first, last = np.searchsorted(ordered, (dip.low - 6 * width, dip.high + 6 * width))
    near = ordered[first:last]
    density = np.array([np.exp(-0.5 * ((near - at) / width) ** 2).sum() for at in grid])
    lowest = np.flatnonzero(density <= density.min())
    return float(grid[lowest[len(lowest) // 2]])
