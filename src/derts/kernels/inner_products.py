"""Inner products of each task's features with its support set, gathered as they are needed."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _inner_products(
    features, rows, out, each, support, size,
    ROWS: tl.constexpr, SUPPORT: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(0).to(tl.int64)
    image, shot = tl.arange(0, ROWS), tl.arange(0, SUPPORT)
    row = tl.load(rows + task * each + image, mask=image < each, other=0)
    column = tl.load(rows + task * each + shot, mask=shot < support, other=0)
    total = tl.zeros([ROWS, SUPPORT], tl.float32)
    for start in range(0, size, STEP):
        entry = start + tl.arange(0, STEP)
        left = tl.load(
            features + row[:, None] * size + entry[None, :],
            mask=(image < each)[:, None] & (entry < size)[None, :],
            other=0.0,
        )
        right = tl.load(
            features + column[None, :] * size + entry[:, None],
            mask=(shot < support)[None, :] & (entry < size)[:, None],
            other=0.0,
        )
        total = tl.dot(left.to(tl.bfloat16), right.to(tl.bfloat16), total)
    at = (task * each + image)[:, None] * support + shot[None, :]
    tl.store(out + at, total, mask=(image < each)[:, None] & (shot < support)[None, :])


def inner_products(features: Tensor, rows: Tensor, support: int) -> Tensor:
    """features [n, d] that bfloat16 holds exactly, rows int64 [T, m] -> float32 [T, m, support].

    Entry (t, a, b) is the product of the features of images a and b of task t.
    """
    tasks, each = rows.shape
    out = torch.empty(tasks, each, support, device=features.device)
    height = max(16, triton.next_power_of_2(each))
    width = max(16, triton.next_power_of_2(support))
    _inner_products[(tasks,)](
        features, rows, out, each, support, features.shape[1],
        ROWS=height, SUPPORT=width, STEP=64, num_warps=4,
    )  # fmt: skip
    return out
