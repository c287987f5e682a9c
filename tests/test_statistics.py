"""Intervals over seeds against scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from derts.statistics import over_seeds, paired_by_seed


@pytest.mark.parametrize("count", [2, 3, 5, 10, 31])
def test_the_interval_is_students(count: int) -> None:
    values = np.random.default_rng(count).normal(60, 2, count)
    low, high = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
    found = over_seeds(values.tolist())
    assert found.mean == pytest.approx(values.mean())
    assert found.interval == pytest.approx((high - low) / 2, rel=1e-3)


def test_pairing_takes_out_what_seeds_share() -> None:
    found = paired_by_seed({0: 61.0, 1: 65.0, 2: 58.0}, {2: 57.0, 1: 64.0, 0: 60.0, 3: 9.0})
    assert found is not None
    assert found.mean == pytest.approx(1.0)
    assert found.interval == pytest.approx(0.0, abs=1e-9)
    assert math.isnan(over_seeds([3.0]).interval)
    assert paired_by_seed({0: 1.0}, {1: 1.0}) is None
