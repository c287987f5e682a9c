"""What the checks of kernels (benchmarks/kernels.py) share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

STORED, SUMMED = 0.004, 1e-5
DEVICE = torch.device("cuda")
Row = dict[str, Any]


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Relative, in float64."""
    ours, theirs = ours.detach().double(), theirs.detach().double()
    return float((ours - theirs).norm() / theirs.norm())


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
