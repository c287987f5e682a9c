"""Freed memory that stays with the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from derts.hardware import SPINS, keep_freed_memory, wait_without_spinning

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
