"""Means and intervals over seeds, paired where runs share everything but the strategy."""

import math
from collections.abc import Mapping, Sequence
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

    def shown(self, sign: str = "", digits: int = 2) -> str:
        """`mean ± interval`, the mean alone where there is no interval; `sign` "+" shows signs."""
        half = "" if math.isnan(self.interval) else f" ± {self.interval:.{digits}f}"
        return f"{self.mean:{sign}.{digits}f}{half}"

    __str__ = shown


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


def paired_by_seed(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Estimate | None:
    """Mean and interval of ours − theirs over the seeds that both have; None without any.

    >>> str(paired_by_seed({0: 61.0, 1: 63.0, 2: 62.0}, {0: 60.0, 1: 61.5, 2: 60.8, 3: 58.0}))
    '1.23 ± 0.63'
    """
    both = sorted(ours.keys() & theirs.keys())
    return over_seeds([ours[seed] - theirs[seed] for seed in both]) if both else None
