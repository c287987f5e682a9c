"""The end of a residual block whose shortcut is a convolution 1×1 of pixels.

As derts.kernels.residual has it, max-pool(leaky(norm(main) + shortcut)), but the shortcut of so few
channels is computed where it is needed: it is neither written nor read. Backward, only its weights
want a gradient: sums over cells.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from derts.kernels import program_count
from derts.kernels.pixels import corners, inner_size
from derts.kernels.residual import TILE
from derts.models.embedding import PIXEL_MEAN, PIXEL_SCALE


@triton.jit
def _colour(pixel, NUMBER: tl.constexpr, MEAN: tl.constexpr, SCALE: tl.constexpr):
    """One channel of pixels of four bytes, normalised."""
    return (((pixel >> (8 * NUMBER)) & 255).to(tl.float32) - MEAN) * (1 / SCALE)


@triton.jit
def _shortcut(pixel, mask, red, green, blue, MEAN: tl.constexpr, SCALE: tl.constexpr):
    """[rows, filters]: convolution 1×1 of pixels; weights [filters] of each channel."""
    pixel = tl.load(pixel, mask=mask, other=0)
    value = _colour(pixel, 0, MEAN, SCALE)[:, None] * red[None, :]
    value += _colour(pixel, 1, MEAN, SCALE)[:, None] * green[None, :]
    return value + _colour(pixel, 2, MEAN, SCALE)[:, None] * blue[None, :]


@triton.jit
def _join(
    main, framed, scale, colours, shift, pooled, winning, winner, cells,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr, KEEP: tl.constexpr,
    SLOPE: tl.constexpr, MEAN: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, CHANNELS)
    factor, added = tl.load(scale + column)[None, :], tl.load(shift + column)[None, :]
    red, green = tl.load(colours + column), tl.load(colours + CHANNELS + column)
    blue = tl.load(colours + 2 * CHANNELS + column)
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = cell < cells
    mask = real[:, None]
    at = corners(cell, HEIGHT, WIDTH, 0)[:, None] * CHANNELS + column[None, :]
    pixel = framed + corners(cell, HEIGHT, WIDTH, 2) + (WIDTH + 2) + 1  # inside of the border
    raw = tl.load(main + at, mask=mask, other=0.0).to(tl.float32)
    best = raw * factor + _shortcut(pixel, real, red, green, blue, MEAN, SCALE)
    number = tl.zeros([BLOCK, CHANNELS], tl.int32)
    for position in tl.static_range(1, 4):
        offset = ((position // 2) * WIDTH + position % 2) * CHANNELS
        value = tl.load(main + at + offset, mask=mask, other=0.0).to(tl.float32)
        beside = pixel + (position // 2) * (WIDTH + 2) + position % 2
        other = value * factor + _shortcut(beside, real, red, green, blue, MEAN, SCALE)
        better = other > best
        number = tl.where(better, position, number)
        raw = tl.where(better, value, raw)
        best = tl.maximum(best, other)
    best += added
    out = cell.to(tl.int64)[:, None] * CHANNELS + column[None, :]
    tl.store(pooled + out, tl.where(best > 0, best, best * SLOPE).to(tl.bfloat16), mask=mask)
    if KEEP:
        tl.store(winner + out, tl.where(best > 0, number, number + 4).to(tl.uint8), mask=mask)
        tl.store(winning + out, raw.to(tl.bfloat16), mask=mask)


@triton.jit
def _join_sums(
    framed, upstream, winning, winner, partial, cells,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
    SLOPE: tl.constexpr, MEAN: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, CHANNELS)
    total = tl.zeros([BLOCK, CHANNELS], tl.float32)
    products = tl.zeros([BLOCK, CHANNELS], tl.float32)
    red = tl.zeros([BLOCK, CHANNELS], tl.float32)
    green = tl.zeros([BLOCK, CHANNELS], tl.float32)
    blue = tl.zeros([BLOCK, CHANNELS], tl.float32)
    for start in range(tl.program_id(0) * BLOCK, cells, tl.num_programs(0) * BLOCK):
        cell = start + tl.arange(0, BLOCK)
        at = cell.to(tl.int64)[:, None] * CHANNELS + column[None, :]
        mask = (cell < cells)[:, None]
        number = tl.load(winner + at, mask=mask, other=0).to(tl.int32)
        change = tl.load(upstream + at, mask=mask, other=0.0).to(tl.float32)
        change = tl.where(number < 4, change, change * SLOPE)
        total += change
        products += change * tl.load(winning + at, mask=mask, other=0.0).to(tl.float32)
        first = framed + corners(cell, HEIGHT, WIDTH, 2)[:, None] + (WIDTH + 2) + 1
        below = first + WIDTH + 2
        left, right = tl.load(first, mask=mask, other=0), tl.load(first + 1, mask=mask, other=0)
        upper = tl.where(number % 2 == 0, left, right)
        left, right = tl.load(below, mask=mask, other=0), tl.load(below + 1, mask=mask, other=0)
        lower = tl.where(number % 2 == 0, left, right)
        pixel = tl.where(number % 4 < 2, upper, lower)
        red += change * _colour(pixel, 0, MEAN, SCALE)
        green += change * _colour(pixel, 1, MEAN, SCALE)
        blue += change * _colour(pixel, 2, MEAN, SCALE)
    out = partial + tl.program_id(0) * 5 * CHANNELS + column
    tl.store(out, tl.sum(total, 0))
    tl.store(out + CHANNELS, tl.sum(products, 0))
    tl.store(out + 2 * CHANNELS, tl.sum(red, 0))
    tl.store(out + 3 * CHANNELS, tl.sum(green, 0))
    tl.store(out + 4 * CHANNELS, tl.sum(blue, 0))


def join(
    main: Tensor,
    framed: Tensor,
    scale: Tensor,
    colours: Tensor,
    shift: Tensor,
    slope: float,
    keep: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """max-pool(leaky(main × scale + pixel · colours + shift)) of bfloat16 [n, H, W, C].

    Scale and shift float32 [C], colours float32 [3, C]. Returns [n, H/2, W/2, C] and, if kept, the
    winners' values of main and their numbers (four more where they were negative).
    """
    cells, height, width = inner_size(framed)
    channels = main.shape[-1]
    shape = (len(framed), height // 2, width // 2, channels)
    pooled = torch.empty(shape, dtype=torch.bfloat16, device=main.device)
    winning = torch.empty_like(pooled) if keep else None
    winner = torch.empty(shape, dtype=torch.uint8, device=main.device) if keep else None
    block = max(1, TILE // 2 // channels)
    _join[(triton.cdiv(cells, block),)](
        main, framed, scale, colours, shift, pooled, winning, winner, cells,
        HEIGHT=height, WIDTH=width, CHANNELS=channels, BLOCK=block, KEEP=keep,
        SLOPE=slope, MEAN=PIXEL_MEAN, SCALE=PIXEL_SCALE, num_warps=4,
    )  # fmt: skip
    return pooled, winning, winner


def join_sums(
    framed: Tensor, upstream: Tensor, winning: Tensor, winner: Tensor, slope: float
) -> Tensor:
    """[5, C]: Σ of the gradient that passes leaky, and of it × the winner's value and colours."""
    cells, height, width = inner_size(framed)
    channels = upstream.shape[-1]
    block = max(1, TILE // channels)
    programs = program_count(framed, triton.cdiv(cells, block))
    partial = torch.empty(programs, 5, channels, device=framed.device)
    _join_sums[(programs,)](
        framed, upstream, winning, winner, partial, cells,
        HEIGHT=height, WIDTH=width, CHANNELS=channels, BLOCK=block,
        SLOPE=slope, MEAN=PIXEL_MEAN, SCALE=PIXEL_SCALE, num_warps=8,
    )  # fmt: skip
    return partial.sum(0)
