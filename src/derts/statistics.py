"""Means and intervals over seeds, paired where runs share everything but the strategy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# 97.5% quantiles of Student's t for 1, 2, … degrees of freedom
STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


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


def over_seeds(values: Sequence[float]) -> Estimate:
    """Mean and 95% interval of one value per seed, by Student's t.

    >>> str(over_seeds([60.0, 62.0, 61.0]))
    '61.00 ± 2.48'
    """
    count = len(values)
    mean = sum(values) / count
    if count < 2:
        return Estimate(mean, math.nan)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    quantile = STUDENT[count - 2] if count - 1 <= len(STUDENT) else 1.96
    return Estimate(mean, quantile * deviation / math.sqrt(count))


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Mean and interval of ours − theirs, seed by seed.

    >>> str(paired_difference([61.0, 63.0, 62.0], [60.0, 61.5, 60.8]))
    '1.23 ± 0.63'
    """
    return over_seeds([a - b for a, b in zip(ours, theirs, strict=True)])
