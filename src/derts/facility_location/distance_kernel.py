"""Rounded distances between points on the grid, in one pass: only the answer is written."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _distances(
    points, others, out, rows, columns, inner,
    ROUNDER: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * HIGH + tl.arange(0, HIGH)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    squares = tl.zeros([HIGH, WIDE], tl.float64)
    for term in range(inner):
        first = tl.load(points + row * inner + term, mask=row < rows, other=0.0)
        second = tl.load(others + column * inner + term, mask=column < columns, other=0.0)
        apart = first[:, None] - second[None, :]
        squares += apart * apart
    # the nearest float32 to the root, as everywhere
    roots = tl.sqrt_rn(squares.to(tl.float32))
    rounded = (roots + ROUNDER) - ROUNDER
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out + at, rounded, mask=(row < rows)[:, None] & (column < columns)[None, :])


def distances(points: Tensor, others: Tensor, rounder: float) -> Tensor:
    """From points [m, d] to points [n, d], both float64 on the grid: float32 [m, n], rounded.

    Squares of differences and their sums are exact, as the factors' products are.
    """
    rows, columns = len(points), len(others)
    out = torch.empty(rows, columns, device=points.device)
    _distances[(triton.cdiv(rows, 32), triton.cdiv(columns, 128))](
        points, others, out, rows, columns, points.shape[1],
        ROUNDER=rounder, HIGH=32, WIDE=128, num_warps=4,
    )  # fmt: skip
    return out
