"""What the checks of kernels (benchmarks/kernels.py) share."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import Tensor

STORED, SUMMED = 0.004, 1e-5
DEVICE = torch.device("cuda")
Row = dict[str, float | str]


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Relative, in float64."""
    ours, theirs = ours.detach().double(), theirs.detach().double()
    return float((ours - theirs).norm() / theirs.norm())


def milliseconds(run: Callable[[], object]) -> float:
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


def random(*shape: int) -> Tensor:
    """Normal numbers that bfloat16 holds."""
    return torch.randn(shape, device=DEVICE).bfloat16().float()


def pixels(count: int) -> Tensor:
    """Random images."""
    return torch.randint(0, 256, (count, 84, 84, 3), device=DEVICE, dtype=torch.uint8)


def row(name: str, found: float, allowed: float, time: float) -> Row:
    """One line of the answer, printed."""
    print(f"{name}: differs by {found:.2g} (allowed {allowed:g}), {time:.3f} ms", flush=True)
    return {"kernel": name, "difference": found, "allowed": allowed, "ms": time}
