"""BatchNorm, ReLU and max-pool 2 in one pass, forward and backward, on channels-last activations.

Kept for backward: the activation before BatchNorm, and of each pooled cell the winner's value and
number. The statistics' gradient needs two sums over cells only, since a position that did not win
has none of its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from derts.kernels import program_count


@triton.jit
def _sums(values, partial, rows, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, CHANNELS)
    total = tl.zeros([BLOCK, CHANNELS], tl.float32)
    squares = tl.zeros([BLOCK, CHANNELS], tl.float32)
    for start in range(tl.program_id(0) * BLOCK, rows, tl.num_programs(0) * BLOCK):
        row = start + tl.arange(0, BLOCK)
        at = row.to(tl.int64)[:, None] * CHANNELS + column[None, :]
        value = tl.load(values + at, mask=(row < rows)[:, None], other=0.0).to(tl.float32)
        total += value
        squares += value * value
    out = partial + tl.program_id(0) * 2 * CHANNELS + column
    tl.store(out, tl.sum(total, 0))
    tl.store(out + CHANNELS, tl.sum(squares, 0))


@triton.jit
def _forward(
    values, scale, shift, pooled, winning, winner, cells, height, width,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, CHANNELS)
    factor = tl.load(scale + column)[None, :]
    added = tl.load(shift + column)[None, :]
    across, inside = width // 2, (height // 2) * (width // 2)
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    image, place = cell // inside, cell % inside
    corner = (image.to(tl.int64) * height + 2 * (place // across)) * width + 2 * (place % across)
    at = corner[:, None] * CHANNELS + column[None, :]
    mask = (cell < cells)[:, None]
    raw = tl.load(values + at, mask=mask, other=0.0).to(tl.float32)
    best = raw * factor + added
    number = tl.zeros([BLOCK, CHANNELS], tl.int32)
    for position in tl.static_range(1, 4):
        offset = ((position // 2) * width + position % 2) * CHANNELS
        value = tl.load(values + at + offset, mask=mask, other=0.0).to(tl.float32)
        other = value * factor + added
        better = other > best
        number = tl.where(better, position, number)
        raw = tl.where(better, value, raw)
        best = tl.maximum(best, other)
    out = cell.to(tl.int64)[:, None] * CHANNELS + column[None, :]
    tl.store(pooled + out, tl.maximum(best, 0.0).to(tl.bfloat16), mask=mask)
    if KEEP:
        tl.store(winning + out, raw.to(tl.bfloat16), mask=mask)
        tl.store(winner + out, tl.where(best > 0, number, 4).to(tl.uint8), mask=mask)


@triton.jit
def _backward_sums(
    upstream, winning, winner, partial, rows, CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):
    column = tl.arange(0, CHANNELS)
    total = tl.zeros([BLOCK, CHANNELS], tl.float32)
    products = tl.zeros([BLOCK, CHANNELS], tl.float32)
    for start in range(tl.program_id(0) * BLOCK, rows, tl.num_programs(0) * BLOCK):
        row = start + tl.arange(0, BLOCK)
        at = row.to(tl.int64)[:, None] * CHANNELS + column[None, :]
        mask = (row < rows)[:, None]
        active = tl.load(winner + at, mask=mask, other=4) < 4
        change = tl.load(upstream + at, mask=mask, other=0.0).to(tl.float32)
        change = tl.where(active, change, 0.0)
        total += change
        products += change * tl.load(winning + at, mask=mask, other=0.0).to(tl.float32)
    out = partial + tl.program_id(0) * 2 * CHANNELS + column
    tl.store(out, tl.sum(total, 0))
    tl.store(out + CHANNELS, tl.sum(products, 0))


@triton.jit
def _backward(
    values, upstream, winner, scale, slope, constant, change, cells, height, width,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, BATCH: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, CHANNELS)
    factor = tl.load(scale + column)[None, :]
    # cells of all positions: odd sizes have a last row and column that no pooled cell covers
    across, down = (width + 1) // 2, (height + 1) // 2
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    image, place = cell // (across * down), cell % (across * down)
    y, x = place // across, place % across
    pooled = (image.to(tl.int64) * (height // 2) + y) * (width // 2) + x
    inside = ((cell < cells) & (y < height // 2) & (x < width // 2))[:, None]
    from_cell = pooled[:, None] * CHANNELS + column[None, :]
    number = tl.load(winner + from_cell, mask=inside, other=4).to(tl.int32)
    arriving = tl.load(upstream + from_cell, mask=inside, other=0.0).to(tl.float32) * factor
    corner = (image.to(tl.int64) * height + 2 * y) * width + 2 * x
    at = corner[:, None] * CHANNELS + column[None, :]
    for position in tl.static_range(4):
        here = (cell < cells) & (2 * y + position // 2 < height) & (2 * x + position % 2 < width)
        offset = ((position // 2) * width + position % 2) * CHANNELS
        result = tl.where(number == position, arriving, 0.0)
        if BATCH:
            value = tl.load(values + at + offset, mask=here[:, None], other=0.0).to(tl.float32)
            result += tl.load(slope + column)[None, :] * value + tl.load(constant + column)[None, :]
        tl.store(change + at + offset, result.to(tl.bfloat16), mask=here[:, None])


def moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance per channel, float32 [C], of bfloat16 [n, H, W, C]."""
    channels, rows = values.shape[-1], values.numel() // values.shape[-1]
    programs = program_count(values, triton.cdiv(rows, 32))
    partial = torch.empty(programs, 2, channels, device=values.device)
    block = max(1, 2048 // channels)
    _sums[(programs,)](values, partial, rows, CHANNELS=channels, BLOCK=block, num_warps=8)
    mean, square = partial.sum(0, dtype=torch.float64) / rows
    return mean.float(), (square - mean.square()).clamp(min=0).float()


def forward(
    values: Tensor, scale: Tensor, shift: Tensor, keep: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """max-pool(relu(values × scale + shift)) of bfloat16 [n, H, W, C]; scale, shift float32 [C].

    Returns [n, H // 2, W // 2, C], and if kept the winners' values and numbers, likewise.
    """
    count, height, width, channels = values.shape
    shape = (count, height // 2, width // 2, channels)
    cells = count * (height // 2) * (width // 2)
    pooled = torch.empty(shape, dtype=torch.bfloat16, device=values.device)
    winning = torch.empty_like(pooled) if keep else None
    winner = torch.empty(shape, dtype=torch.uint8, device=values.device) if keep else None
    _forward[(triton.cdiv(cells, 16),)](
        values, scale, shift, pooled, winning, winner, cells, height, width,
        CHANNELS=channels, BLOCK=16, KEEP=keep, num_warps=8,
    )  # fmt: skip
    return pooled, winning, winner


def backward_sums(upstream: Tensor, winning: Tensor, winner: Tensor) -> tuple[Tensor, Tensor]:
    """Σ over cells of the gradient that passes ReLU, and of it × the winner's value, [C] each."""
    channels, rows = upstream.shape[-1], upstream.numel() // upstream.shape[-1]
    programs = program_count(upstream, triton.cdiv(rows, 32))
    partial = torch.empty(programs, 2, channels, device=upstream.device)
    _backward_sums[(programs,)](
        upstream, winning, winner, partial, rows, CHANNELS=channels, BLOCK=32, num_warps=8
    )
    total, products = partial.sum(0)
    return total, products


def backward(
    values: Tensor,
    upstream: Tensor,
    winner: Tensor,
    scale: Tensor,
    from_batch: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Gradient in `values`: winners get upstream × scale; all get what statistics add.

    `from_batch`: factor and constant [C] of each value, None where the statistics were fixed.
    """
    count, height, width, channels = values.shape
    cells = count * ((height + 1) // 2) * ((width + 1) // 2)
    change = torch.empty_like(values)
    slope, constant = from_batch or (None, None)
    _backward[(triton.cdiv(cells, 16),)](
        values, upstream, winner, scale, slope, constant, change, cells, height, width,
        CHANNELS=channels, BLOCK=16, BATCH=from_batch is not None, num_warps=4,
    )  # fmt: skip
    return change
