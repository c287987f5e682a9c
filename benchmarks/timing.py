"""How the programs here take times, and how they write down what they found."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from derts.files import write_json
from derts.provenance import code_version, machine


def seconds(run: Callable[[], object], repeats: int, in_a_row: int = 1) -> list[float]:
    """Of one run, `repeats` times: each the mean of some in a row, until the GPU is done.

    Half as many come before, to compile and tune what they use.

    >>> len(seconds(lambda: None, repeats=3))
    3
    """
    found = []
    for runs in (max(in_a_row // 2, 1), *[in_a_row] * repeats):
        start = time.perf_counter()
        for _ in range(runs):
            run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found.append((time.perf_counter() - start) / runs)
    return found[1:]


def gpu_milliseconds(run: Callable[[], object]) -> float:
    """Median of twenty, by the GPU's own clock, after three to warm up."""
    found = []
    for number in range(23):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        if number > 2:
            found.append(float(start.elapsed_time(end)))
    return statistics.median(found)


def save_results(path: Path | None, results: list[dict[str, Any]]) -> None:
    """Results with machine and code, as JSON; nothing where no file was asked for."""
    if path is not None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        write_with_code(path, device, results=results)


def write_with_code(path: Path, device: str = "cpu", **found: Any) -> None:
    """What was found as JSON, with the machine and the code that found it."""
    write_json(path, {"machine": machine(device), "code": code_version(), **found})
