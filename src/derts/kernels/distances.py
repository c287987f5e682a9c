"""Rounded distances from the factors of their squares, in one pass: only the answer is written."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _distances(
    left, right, out, rows, columns, inner,
    ROUNDER: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * HIGH + tl.arange(0, HIGH)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    squares = tl.zeros([HIGH, WIDE], tl.float64)
    for term in range(inner):
        first = tl.load(left + row * inner + term, mask=row < rows, other=0.0)
        second = tl.load(right + term * columns + column, mask=column < columns, other=0.0)
        squares += first[:, None] * second[None, :]
    # the nearest float32 to the root, as everywhere
    roots = tl.sqrt_rn(squares.to(tl.float32))
    rounded = (roots + ROUNDER) - ROUNDER
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out + at, rounded, mask=(row < rows)[:, None] & (column < columns)[None, :])


def distances(left: Tensor, right: Tensor, rounder: float) -> Tensor:
    """Roots of left [m, r] @ right [r, n], float64 and exact, as float32 [m, n] on the quantum."""
    rows, columns = len(left), right.shape[1]
    out = torch.empty(rows, columns, device=left.device)
    _distances[(triton.cdiv(rows, 32), triton.cdiv(columns, 128))](
        left, right, out, rows, columns, left.shape[1],
        ROUNDER=rounder, HIGH=32, WIDE=128, num_warps=4,
    )  # fmt: skip
    return out
