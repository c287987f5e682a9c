"""BatchNorm with leaky ReLU, and the end of a residual block, in single passes.

The end of a block is max-pool(leaky(norm(a) + norm(b))) for the main branch a and the shortcut b.
Kept for backward: a and b as they came, and of each pooled cell the winner's number (four more
where it was negative) and its two values.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from derts.kernels import program_count

TILE = 2048  # numbers per step


@triton.jit
def _leaky(
    values, scale, shift, out, rows,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, CHANNELS)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = row.to(tl.int64)[:, None] * CHANNELS + column[None, :]
    mask = (row < rows)[:, None]
    value = tl.load(values + at, mask=mask, other=0.0).to(tl.float32)
    value = value * tl.load(scale + column)[None, :] + tl.load(shift + column)[None, :]
    tl.store(out + at, tl.where(value > 0, value, value * SLOPE).to(tl.bfloat16), mask=mask)


@triton.jit
def _leaky_sums(
    values, upstream, scale, shift, partial, rows,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, CHANNELS)
    factor, added = tl.load(scale + column)[None, :], tl.load(shift + column)[None, :]
    total = tl.zeros([BLOCK, CHANNELS], tl.float32)
    products = tl.zeros([BLOCK, CHANNELS], tl.float32)
    for start in range(tl.program_id(0) * BLOCK, rows, tl.num_programs(0) * BLOCK):
        row = start + tl.arange(0, BLOCK)
        at = row.to(tl.int64)[:, None] * CHANNELS + column[None, :]
        mask = (row < rows)[:, None]
        value = tl.load(values + at, mask=mask, other=0.0).to(tl.float32)
        change = tl.load(upstream + at, mask=mask, other=0.0).to(tl.float32)
        change = tl.where(value * factor + added > 0, change, change * SLOPE)
        total += change
        products += change * value
    out = partial + tl.program_id(0) * 2 * CHANNELS + column
    tl.store(out, tl.sum(total, 0))
    tl.store(out + CHANNELS, tl.sum(products, 0))


@triton.jit
def _leaky_backward(
    values, upstream, scale, shift, slope, constant, change, rows,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, SLOPE: tl.constexpr, BATCH: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, CHANNELS)
    factor, added = tl.load(scale + column)[None, :], tl.load(shift + column)[None, :]
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = row.to(tl.int64)[:, None] * CHANNELS + column[None, :]
    mask = (row < rows)[:, None]
    value = tl.load(values + at, mask=mask, other=0.0).to(tl.float32)
    result = tl.load(upstream + at, mask=mask, other=0.0).to(tl.float32) * factor
    result = tl.where(value * factor + added > 0, result, result * SLOPE)
    if BATCH:
        result += tl.load(slope + column)[None, :] * value + tl.load(constant + column)[None, :]
    tl.store(change + at, result.to(tl.bfloat16), mask=mask)


@triton.jit
def _join(
    first, second, scales, shift, pooled, winning, winner, cells, height, width,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, SLOPE: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, CHANNELS)
    factor = tl.load(scales + column)[None, :]
    other_factor = tl.load(scales + CHANNELS + column)[None, :]
    added = tl.load(shift + column)[None, :]
    across, inside = width // 2, (height // 2) * (width // 2)
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    image, place = cell // inside, cell % inside
    corner = (image.to(tl.int64) * height + 2 * (place // across)) * width + 2 * (place % across)
    at = corner[:, None] * CHANNELS + column[None, :]
    mask = (cell < cells)[:, None]
    best_first = tl.load(first + at, mask=mask, other=0.0).to(tl.float32)
    best_second = tl.load(second + at, mask=mask, other=0.0).to(tl.float32)
    best = best_first * factor + best_second * other_factor + added
    number = tl.zeros([BLOCK, CHANNELS], tl.int32)
    for position in tl.static_range(1, 4):
        offset = ((position // 2) * width + position % 2) * CHANNELS
        one = tl.load(first + at + offset, mask=mask, other=0.0).to(tl.float32)
        two = tl.load(second + at + offset, mask=mask, other=0.0).to(tl.float32)
        value = one * factor + two * other_factor + added
        better = value > best
        number = tl.where(better, position, number)
        best_first, best_second = (
            tl.where(better, one, best_first),
            tl.where(better, two, best_second),
        )
        best = tl.maximum(best, value)
    out = cell.to(tl.int64)[:, None] * CHANNELS + column[None, :]
    tl.store(pooled + out, tl.where(best > 0, best, best * SLOPE).to(tl.bfloat16), mask=mask)
    if KEEP:
        tl.store(winner + out, tl.where(best > 0, number, number + 4).to(tl.uint8), mask=mask)
        tl.store(winning + out, best_first.to(tl.bfloat16), mask=mask)
        behind = cells.to(tl.int64) * CHANNELS
        tl.store(winning + behind + out, best_second.to(tl.bfloat16), mask=mask)


@triton.jit
def _join_sums(
    upstream, winning, winner, partial, rows,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, CHANNELS)
    behind = rows.to(tl.int64) * CHANNELS
    total = tl.zeros([BLOCK, CHANNELS], tl.float32)
    one = tl.zeros([BLOCK, CHANNELS], tl.float32)
    two = tl.zeros([BLOCK, CHANNELS], tl.float32)
    for start in range(tl.program_id(0) * BLOCK, rows, tl.num_programs(0) * BLOCK):
        row = start + tl.arange(0, BLOCK)
        at = row.to(tl.int64)[:, None] * CHANNELS + column[None, :]
        mask = (row < rows)[:, None]
        positive = tl.load(winner + at, mask=mask, other=0) < 4
        change = tl.load(upstream + at, mask=mask, other=0.0).to(tl.float32)
        change = tl.where(positive, change, change * SLOPE)
        total += change
        one += change * tl.load(winning + at, mask=mask, other=0.0).to(tl.float32)
        two += change * tl.load(winning + behind + at, mask=mask, other=0.0).to(tl.float32)
    out = partial + tl.program_id(0) * 3 * CHANNELS + column
    tl.store(out, tl.sum(total, 0))
    tl.store(out + CHANNELS, tl.sum(one, 0))
    tl.store(out + 2 * CHANNELS, tl.sum(two, 0))


@triton.jit
def _join_backward(
    values, upstream, winner, scale, slope, constant, change, cells, height, width,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, SLOPE: tl.constexpr, BATCH: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, CHANNELS)
    # cells of all positions: odd sizes have a last row and column that no pooled cell covers
    across, down = (width + 1) // 2, (height + 1) // 2
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    image, place = cell // (across * down), cell % (across * down)
    y, x = place // across, place % across
    pooled = (image.to(tl.int64) * (height // 2) + y) * (width // 2) + x
    inside = ((cell < cells) & (y < height // 2) & (x < width // 2))[:, None]
    from_cell = pooled[:, None] * CHANNELS + column[None, :]
    number = tl.load(winner + from_cell, mask=inside, other=8).to(tl.int32)
    arriving = tl.load(upstream + from_cell, mask=inside, other=0.0).to(tl.float32)
    arriving = tl.where(number < 4, arriving, arriving * SLOPE) * tl.load(scale + column)[None, :]
    corner = (image.to(tl.int64) * height + 2 * y) * width + 2 * x
    at = corner[:, None] * CHANNELS + column[None, :]
    for position in tl.static_range(4):
        here = (cell < cells) & (2 * y + position // 2 < height) & (2 * x + position % 2 < width)
        offset = ((position // 2) * width + position % 2) * CHANNELS
        result = tl.where((number % 4 == position) & (number < 8), arriving, 0.0)
        if BATCH:
            value = tl.load(values + at + offset, mask=here[:, None], other=0.0).to(tl.float32)
            result += tl.load(slope + column)[None, :] * value + tl.load(constant + column)[None, :]
        tl.store(change + at + offset, result.to(tl.bfloat16), mask=here[:, None])


def _size(values: Tensor) -> tuple[int, int, int]:
    """Channels, rows, and rows per step."""
    channels = values.shape[-1]
    return channels, values.numel() // channels, max(1, TILE // channels)


def leaky(values: Tensor, scale: Tensor, shift: Tensor, slope: float) -> Tensor:
    """leaky(values × scale + shift) of bfloat16 [n, H, W, C]; scale, shift float32 [C]."""
    channels, rows, block = _size(values)
    out = torch.empty_like(values)
    _leaky[(triton.cdiv(rows, block),)](
        values, scale, shift, out, rows, CHANNELS=channels, BLOCK=block, SLOPE=slope, num_warps=4
    )
    return out


def leaky_sums(
    values: Tensor, upstream: Tensor, scale: Tensor, shift: Tensor, slope: float
) -> tuple[Tensor, Tensor]:
    """Σ of the gradient that passes leaky, and of it × the value, [C] each."""
    channels, rows, block = _size(values)
    programs = program_count(values, triton.cdiv(rows, block))
    partial = torch.empty(programs, 2, channels, device=values.device)
    _leaky_sums[(programs,)](
        values, upstream, scale, shift, partial, rows,
        CHANNELS=channels, BLOCK=block, SLOPE=slope, num_warps=8,
    )  # fmt: skip
    total, products = partial.sum(0)
    return total, products


def leaky_backward(
    values: Tensor,
    upstream: Tensor,
    scale: Tensor,
    shift: Tensor,
    from_batch: tuple[Tensor, Tensor] | None,
    slope: float,
) -> Tensor:
    """Gradient in `values`; `from_batch` [C] each: what the batch's statistics add, per value."""
    channels, rows, block = _size(values)
    change = torch.empty_like(values)
    factor, constant = from_batch or (None, None)
    _leaky_backward[(triton.cdiv(rows, block),)](
        values, upstream, scale, shift, factor, constant, change, rows,
        CHANNELS=channels, BLOCK=block, SLOPE=slope, BATCH=from_batch is not None, num_warps=4,
    )  # fmt: skip
    return change


def join(
    first: Tensor, second: Tensor, scales: Tensor, shift: Tensor, slope: float, keep: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """max-pool(leaky(first × scales[0] + second × scales[1] + shift)) of bfloat16 [n, H, W, C].

    Returns [n, H // 2, W // 2, C] and, if kept, winning values [2, …] and winners' numbers.
    """
    count, height, width, channels = first.shape
    shape = (count, height // 2, width // 2, channels)
    cells = count * (height // 2) * (width // 2)
    pooled = torch.empty(shape, dtype=torch.bfloat16, device=first.device)
    winning = torch.empty(2, *shape, dtype=torch.bfloat16, device=first.device) if keep else None
    winner = torch.empty(shape, dtype=torch.uint8, device=first.device) if keep else None
    block = max(1, TILE // 2 // channels)
    _join[(triton.cdiv(cells, block),)](
        first, second, scales, shift, pooled, winning, winner, cells, height, width,
        CHANNELS=channels, BLOCK=block, SLOPE=slope, KEEP=keep, num_warps=4,
    )  # fmt: skip
    return pooled, winning, winner


def join_sums(upstream: Tensor, winning: Tensor, winner: Tensor, slope: float) -> Tensor:
    """[3, C]: Σ of the gradient that passes leaky, and of it × the winners' two values."""
    channels, rows, block = _size(upstream)
    programs = program_count(upstream, triton.cdiv(rows, block))
    partial = torch.empty(programs, 3, channels, device=upstream.device)
    _join_sums[(programs,)](
        upstream, winning, winner, partial, rows,
        CHANNELS=channels, BLOCK=block, SLOPE=slope, num_warps=8,
    )  # fmt: skip
    return partial.sum(0)


def join_backward(
    values: Tensor,
    upstream: Tensor,
    winner: Tensor,
    scale: Tensor,
    from_batch: tuple[Tensor, Tensor] | None,
    slope: float,
) -> Tensor:
    """Gradient in one of the two branches' values."""
    count, height, width, channels = values.shape
    cells = count * ((height + 1) // 2) * ((width + 1) // 2)
    change = torch.empty_like(values)
    factor, constant = from_batch or (None, None)
    block = max(1, TILE // 2 // channels)
    _join_backward[(triton.cdiv(cells, block),)](
        values, upstream, winner, scale, factor, constant, change, cells, height, width,
        CHANNELS=channels, BLOCK=block, SLOPE=slope, BATCH=from_batch is not None, num_warps=4,
    )  # fmt: skip
    return change
