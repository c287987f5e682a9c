"""Means and intervals over seeds, paired where runs share everything but the strategy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


def student_inside(t: float, freedom: int) -> float:
    """Chance that |T| ≤ t for Student's t with so many degrees of freedom."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for k in range(1 + odd, freedom, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def student(level: float, freedom: int) -> float:
    """How far ±t reaches that |T| exceeds with the chance `level`.

    >>> round(student(0.05, 2), 3)
    4.303
    """
    low, high = 0.0, 1e9
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_inside(middle, freedom) < 1 - level else (low, middle)
    return high


@dataclass(frozen=True)
class Estimate:
    """A mean and the half-width of its 95% interval (nan for a single value)."""

    mean: float
    interval: float

    def __str__(self) -> str:
        return self.shown()

    def shown(self, sign: str = "", digits: int = 2) -> str:
        """`mean ± interval`, the mean alone where there is no interval; `sign` "+" shows signs."""
        half = "" if math.isnan(self.interval) else f" ± {self.interval:.{digits}f}"
        return f"{self.mean:{sign}.{digits}f}{half}"


def over_seeds(values: Sequence[float], level: float = 0.05) -> Estimate:
    """Mean and interval (95% at level 0.05) of one value per seed, by Student's t.

    >>> str(over_seeds([60.0, 62.0, 61.0]))
    '61.00 ± 2.48'
    """
    count = len(values)
    mean = sum(values) / count
    if count < 2:
        return Estimate(mean, math.nan)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    return Estimate(mean, student(level, count - 1) * deviation / math.sqrt(count))


def holm(samples: Sequence[Sequence[float]], level: float = 0.05) -> list[Estimate]:
    """Intervals of many comparisons' differences by seed, after Holm, in the order given.

    Of m comparisons the clearest has an interval at level/m, the next at level/(m − 1), and so on
    up to the first that holds 0, whose level is that of all others.

    >>> [str(one) for one in holm([[1.0, 2.0, 3.0], [8.0, 8.1, 8.2]])]
    ['2.00 ± 2.48', '8.10 ± 0.36']
    """
    alone = [over_seeds(values) for values in samples]
    order = sorted(
        (one for one in range(len(samples)) if not math.isnan(alone[one].interval)),
        key=lambda one: -_clearness(samples[one]),
    )
    found, parts = list(alone), len(order)
    for one in order:
        found[one] = over_seeds(samples[one], level / parts)
        if abs(found[one].mean) > found[one].interval:
            parts -= 1
    return found


def _clearness(values: Sequence[float]) -> float:
    """The chance of a smaller |t| were there no difference."""
    one, count = over_seeds(values), len(values)
    if one.interval == 0:
        return float(one.mean != 0)
    return student_inside(abs(one.mean) / one.interval * student(0.05, count - 1), count - 1)


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Mean and interval of ours − theirs, seed by seed.

    >>> str(paired_difference([61.0, 63.0, 62.0], [60.0, 61.5, 60.8]))
    '1.23 ± 0.63'
    """
    return over_seeds([a - b for a, b in zip(ours, theirs, strict=True)])
