"""Seconds per phase."""

import time

import pytest
import torch

from derts.clock import Clock


def test_a_phase_within_a_phase_counts_once() -> None:
    clock = Clock(torch.device("cpu"))
    start = time.perf_counter()
    with clock.phase("outer"):
        time.sleep(0.01)
        for _ in range(2):
            with clock.phase("inner"):
                time.sleep(0.02)
    whole = time.perf_counter() - start
    assert clock.seconds["inner"] >= 0.04
    assert 0.01 <= clock.seconds["outer"] < whole - 0.04 + 1e-3
    assert sum(clock.seconds.values()) == pytest.approx(whole, abs=2e-3)
    clock.settle("inner")  # nothing to wait for on a CPU
    assert set(clock.seconds) == {"outer", "inner"}
