"""Freed memory that stays with the process, and how much of a GPU's it may hold."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from derts.hardware import SPINS, keep_freed_memory, limit_memory, wait_without_spinning

PROGRAM = """
import resource
from derts.hardware import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        bytearray(b"1") * 48_000_000
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

given_back = faults()
assert keep_freed_memory()
faults()
print(given_back, faults())
"""


@pytest.mark.skipif(not keep_freed_memory(), reason="there is no glibc to ask")
def test_memory_that_was_freed_is_not_fetched_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    given_back, kept = map(int, done.stdout.split())
    if not given_back:
        pytest.skip("the system does not count page faults")
    assert kept < given_back / 3  # the heap may still grow by one of eight


@pytest.mark.parametrize(
    ("given", "then"),
    [({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_sleep_soon_unless_the_user_says_otherwise(
    given: dict[str, str], then: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(given))
    wait_without_spinning()
    assert os.environ.get("GOMP_SPINCOUNT") == then


@pytest.mark.parametrize(
    ("gib", "name", "expected"),
    [(6.0, "cuda", [(0.25, 1)]), (None, "cuda", []), (99.0, "cuda:0", [(1.0, 0)])],
)
def test_a_limit_on_a_gpus_memory_is_a_share_of_it(
    gib: float | None, name: str, expected: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[float, int]] = []
    properties = SimpleNamespace(total_memory=24 * 2**30)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: properties)
    monkeypatch.setattr(
        "torch.cuda.set_per_process_memory_fraction",
        lambda share, index: told.append((share, index)),
    )
    limit_memory(torch.device(name), gib)
    limit_memory(torch.device("cpu"), gib)
    assert told == expected
