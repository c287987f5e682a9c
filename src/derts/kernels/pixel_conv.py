"""A convolution 3×3 with its affine and leaky ReLU straight from pixels, without pooling.

Images are framed, and cells of four positions seen, as derts.kernels.pixels has it. Nothing but the
result is written: the backward pass makes the signs before leaky again from the pixels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from derts.kernels import program_count
from derts.kernels.patches import ENTRIES
from derts.kernels.pixels import corners, inner_size, neighbourhoods
from derts.models.embedding import PIXEL_MEAN, PIXEL_SCALE

CELLS_AT_ONCE = FILTERS_AT_ONCE = 64  # more would not fit into registers


@triton.jit
def _convolved(seen, filters, added, out, mask, SLOPE: tl.constexpr):
    """Write leaky(convolution) of one position."""
    value = tl.dot(seen, filters) + added
    tl.store(out, tl.maximum(value, value * SLOPE).to(tl.bfloat16), mask=mask)


@triton.jit
def _products(seen, filters, added, upstream, mask, sums, SLOPE: tl.constexpr):
    """Add Σ row ⊗ gradient that passes leaky, of one position."""
    positive = tl.dot(seen, filters) + added > 0
    change = tl.load(upstream, mask=mask, other=0.0).to(tl.float32)
    change *= tl.where(positive, 1.0, SLOPE)
    return tl.dot(tl.trans(seen), change.to(tl.bfloat16), sums)


@triton.jit
def _conv_leaky(
    framed, weights, shift, out, cells,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, FILTERS: tl.constexpr,
    ENTRIES: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr,
    SLOPE: tl.constexpr, MEAN: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    at = tl.arange(0, ENTRIES)[:, None] * FILTERS + column[None, :]
    first = tl.load(weights + at)
    second = tl.load(weights + ENTRIES * FILTERS + at)
    third = tl.load(weights + 2 * ENTRIES * FILTERS + at)
    fourth = tl.load(weights + 3 * ENTRIES * FILTERS + at)
    added = tl.load(shift + column)[None, :]
    for start in range(tl.program_id(0) * BLOCK, cells, tl.num_programs(0) * BLOCK):
        cell = start + tl.arange(0, BLOCK)
        seen = neighbourhoods(framed, cell, cells, HEIGHT, WIDTH, MEAN, SCALE)
        corner = out + corners(cell, HEIGHT, WIDTH, 0)[:, None] * FILTERS + column[None, :]
        mask = (cell < cells)[:, None]
        _convolved(seen, first, added, corner, mask, SLOPE)
        _convolved(seen, second, added, corner + FILTERS, mask, SLOPE)
        _convolved(seen, third, added, corner + WIDTH * FILTERS, mask, SLOPE)
        _convolved(seen, fourth, added, corner + (WIDTH + 1) * FILTERS, mask, SLOPE)


@triton.jit
def _conv_leaky_backward(
    framed, weights, shift, upstream, partial, cells,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, FILTERS: tl.constexpr,
    ENTRIES: tl.constexpr, BLOCK: tl.constexpr, AT_ONCE: tl.constexpr,
    SLOPE: tl.constexpr, MEAN: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    # the upper two positions of cells or the lower two: four tiles of sums would take up registers
    row = tl.program_id(1)
    column = tl.program_id(2) * AT_ONCE + tl.arange(0, AT_ONCE)
    at = 2 * row * ENTRIES * FILTERS
    at += tl.arange(0, ENTRIES)[:, None] * FILTERS + column[None, :]
    left, right = tl.load(weights + at), tl.load(weights + ENTRIES * FILTERS + at)
    added = tl.load(shift + column)[None, :]
    to_left = tl.zeros([ENTRIES, AT_ONCE], tl.float32)
    to_right = tl.zeros([ENTRIES, AT_ONCE], tl.float32)
    upstream += row * WIDTH * FILTERS
    for start in range(tl.program_id(0) * BLOCK, cells, tl.num_programs(0) * BLOCK):
        cell = start + tl.arange(0, BLOCK)
        seen = neighbourhoods(framed, cell, cells, HEIGHT, WIDTH, MEAN, SCALE)
        corner = upstream + corners(cell, HEIGHT, WIDTH, 0)[:, None] * FILTERS + column[None, :]
        mask = (cell < cells)[:, None]
        to_left = _products(seen, left, added, corner, mask, to_left, SLOPE)
        to_right = _products(seen, right, added, corner + FILTERS, mask, to_right, SLOPE)
    at += tl.program_id(0) * 4 * ENTRIES * FILTERS
    tl.store(partial + at, to_left)
    tl.store(partial + at + ENTRIES * FILTERS, to_right)


def _shares(framed: Tensor, filters: int) -> tuple[int, int]:
    """Filters at once, and programs that share the cells."""
    steps = triton.cdiv(inner_size(framed)[0], CELLS_AT_ONCE)
    return min(filters, FILTERS_AT_ONCE), program_count(framed, steps)


def conv_leaky(framed: Tensor, weights: Tensor, shift: Tensor, slope: float) -> Tensor:
    """leaky(convolution + shift), bfloat16 [n, H, W, F].

    Weights bfloat16 [4, 64, F] for the four positions of a cell, shift float32 [F].
    """
    cells, height, width = inner_size(framed)
    filters = weights.shape[2]
    at_once, programs = _shares(framed, filters)
    shape = (len(framed), height, width, filters)
    out = torch.empty(shape, dtype=torch.bfloat16, device=framed.device)
    _conv_leaky[(programs, filters // at_once)](
        framed, weights, shift, out, cells, HEIGHT=height, WIDTH=width, FILTERS=filters,
        ENTRIES=ENTRIES, BLOCK=CELLS_AT_ONCE, AT_ONCE=at_once,
        SLOPE=slope, MEAN=PIXEL_MEAN, SCALE=PIXEL_SCALE, num_warps=4,
    )  # fmt: skip
    return out


def conv_leaky_backward(
    framed: Tensor, weights: Tensor, shift: Tensor, upstream: Tensor, slope: float
) -> Tensor:
    """Σ over cells of row ⊗ gradient that passes leaky, of each position: float32 [4, 64, F]."""
    cells, height, width = inner_size(framed)
    filters = weights.shape[2]
    at_once, programs = _shares(framed, filters)
    partial = torch.empty(programs, 4, ENTRIES, filters, device=framed.device)
    _conv_leaky_backward[(programs, 2, filters // at_once)](
        framed, weights, shift, upstream, partial, cells,
        HEIGHT=height, WIDTH=width, FILTERS=filters,
        ENTRIES=ENTRIES, BLOCK=CELLS_AT_ONCE, AT_ONCE=at_once,
        SLOPE=slope, MEAN=PIXEL_MEAN, SCALE=PIXEL_SCALE, num_warps=4,
    )  # fmt: skip
    return partial.sum(0)
