"""The first convolution straight from pixels: conv 3×3, affine, ReLU and max-pool 2 in one kernel.

A pooled cell sees a 4×4 neighbourhood of pixels. As a row of a matrix it holds the 3×3 patches of
all four positions that are pooled, so four small products give the convolution, and the activation
before pooling, by far the largest of the network, never reaches memory. Backward, only the position
that won carries a gradient: four masked products.

Images are first framed: a border of one pixel, which normalises to zero, and four bytes a pixel, so
that a pixel is one aligned load and no index needs a check. The fourth byte normalises to one: the
sums over pixels come with the products.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from derts.kernels import program_count
from derts.kernels.patches import ENTRIES
from derts.models.embedding import PIXEL_MEAN, PIXEL_SCALE


@triton.jit
def _frame(
    images, framed, total, height, width,
    CHANNELS: tl.constexpr, BORDER: tl.constexpr, INSIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, row = pixel % (width + 2) - 1, pixel // (width + 2)
    y, image = row % (height + 2) - 1, row // (height + 2)
    inside = (pixel < total) & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    at = ((image.to(tl.int64) * height + y) * width + x) * CHANNELS
    four = tl.where(inside, INSIDE, BORDER) << 24
    for channel in tl.static_range(3):
        if channel < CHANNELS:
            value = tl.load(images + at + channel, mask=inside, other=BORDER).to(tl.int32)
        else:
            value = tl.full([BLOCK], BORDER, tl.int32)
        four = four | (value << (8 * channel))
    tl.store(framed + pixel, four, mask=pixel < total)


@triton.jit
def corners(cell, height, width, FRAME: tl.constexpr):
    """int64: number of each cell's upper left pixel among all pixels of images so framed."""
    across, inside = width // 2, (height // 2) * (width // 2)
    image, place = cell // inside, cell % inside
    row = image.to(tl.int64) * (height + FRAME) + 2 * (place // across)
    return row * (width + FRAME) + 2 * (place % across)


@triton.jit
def neighbourhoods(framed, cell, cells, height, width, MEAN: tl.constexpr, SCALE: tl.constexpr):
    """[rows, 64] bfloat16: normalised neighbourhoods of cells; zeros behind the last cell."""
    pixel = tl.arange(0, 16)
    across, inside = width // 2, (height // 2) * (width // 2)
    image, place = cell // inside, cell % inside
    corner = (image * (height + 2) + 2 * (place // across)) * (width + 2) + 2 * (place % across)
    offset = (pixel // 4) * (width + 2) + pixel % 4
    real = (cell < cells)[:, None]
    four = tl.load(framed + corner[:, None] + offset[None, :], mask=real, other=0)
    low = tl.join(four & 255, (four >> 16) & 255)
    high = tl.join((four >> 8) & 255, (four >> 24) & 255)
    bytes = tl.join(low, high)  # [rows, 16, 2 (byte >> 1), 2 (byte & 1)]
    flat = tl.reshape(tl.permute(bytes, (0, 2, 3, 1)), (cell.shape[0], 64))
    values = (flat.to(tl.float32) - MEAN) * (1 / SCALE)
    return tl.where(real, values, 0.0).to(tl.bfloat16)


@triton.jit
def _forward(
    framed, weights, shift, pooled, winner, cells, height, width,
    ENTRIES: tl.constexpr, FILTERS: tl.constexpr, BLOCK: tl.constexpr,
    KEEP: tl.constexpr, MEAN: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, FILTERS)
    at = tl.arange(0, ENTRIES)[:, None] * FILTERS + column[None, :]
    first = tl.load(weights + at)
    second = tl.load(weights + ENTRIES * FILTERS + at)
    third = tl.load(weights + 2 * ENTRIES * FILTERS + at)
    fourth = tl.load(weights + 3 * ENTRIES * FILTERS + at)
    added = tl.load(shift + column)
    for start in range(tl.program_id(0) * BLOCK, cells, tl.num_programs(0) * BLOCK):
        cell = start + tl.arange(0, BLOCK)
        seen = neighbourhoods(framed, cell, cells, height, width, MEAN, SCALE)
        best = tl.dot(seen, first)
        number = tl.zeros([BLOCK, FILTERS], tl.int32)
        other = tl.dot(seen, second)
        number = tl.where(other > best, 1, number)
        best = tl.maximum(best, other)
        other = tl.dot(seen, third)
        number = tl.where(other > best, 2, number)
        best = tl.maximum(best, other)
        other = tl.dot(seen, fourth)
        number = tl.where(other > best, 3, number)
        best = tl.maximum(best, other) + added[None, :]
        out = cell.to(tl.int64)[:, None] * FILTERS + column[None, :]
        mask = (cell < cells)[:, None]
        tl.store(pooled + out, tl.maximum(best, 0.0).to(tl.bfloat16), mask=mask)
        if KEEP:
            number = tl.where(best > 0, number, 4)
            tl.store(winner + out, number.to(tl.uint8), mask=mask)


@triton.jit
def _backward(
    framed, upstream, winner, partial, cells, height, width,
    ENTRIES: tl.constexpr, FILTERS: tl.constexpr, BLOCK: tl.constexpr,
    MEAN: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, FILTERS)
    first = tl.zeros([ENTRIES, FILTERS], tl.float32)
    second = tl.zeros([ENTRIES, FILTERS], tl.float32)
    third = tl.zeros([ENTRIES, FILTERS], tl.float32)
    fourth = tl.zeros([ENTRIES, FILTERS], tl.float32)
    for start in range(tl.program_id(0) * BLOCK, cells, tl.num_programs(0) * BLOCK):
        cell = start + tl.arange(0, BLOCK)
        seen = neighbourhoods(framed, cell, cells, height, width, MEAN, SCALE)
        seen = tl.trans(seen)
        place = cell.to(tl.int64)[:, None] * FILTERS + column[None, :]
        mask = (cell < cells)[:, None]
        number = tl.load(winner + place, mask=mask, other=4).to(tl.int32)
        change = tl.load(upstream + place, mask=mask, other=0.0)
        nothing = tl.zeros([BLOCK, FILTERS], tl.bfloat16)
        first = tl.dot(seen, tl.where(number == 0, change, nothing), first)
        second = tl.dot(seen, tl.where(number == 1, change, nothing), second)
        third = tl.dot(seen, tl.where(number == 2, change, nothing), third)
        fourth = tl.dot(seen, tl.where(number == 3, change, nothing), fourth)
    at = tl.program_id(0) * 4 * ENTRIES * FILTERS
    at += tl.arange(0, ENTRIES)[:, None] * FILTERS + column[None, :]
    tl.store(partial + at, first)
    tl.store(partial + at + ENTRIES * FILTERS, second)
    tl.store(partial + at + 2 * ENTRIES * FILTERS, third)
    tl.store(partial + at + 3 * ENTRIES * FILTERS, fourth)


@triton.jit
def _products(
    framed, partial, cells, each, height, width,
    ENTRIES: tl.constexpr, BLOCK: tl.constexpr,
    MEAN: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    sums = tl.zeros([ENTRIES, ENTRIES], tl.float32)
    first = tl.program_id(0) * each
    last = tl.minimum(first + each, cells)
    for start in range(first, last, BLOCK):
        cell = start + tl.arange(0, BLOCK)
        seen = neighbourhoods(framed, cell, last, height, width, MEAN, SCALE)
        sums = tl.dot(tl.trans(seen), seen, sums)
    entry = tl.arange(0, ENTRIES)
    at = tl.program_id(0) * ENTRIES * ENTRIES + entry[:, None] * ENTRIES + entry[None, :]
    tl.store(partial + at, sums)


def frame(images: Tensor) -> Tensor:
    """uint8 [n, H, W, C] with C ≤ 3 -> int32 [n, H + 2, W + 2]: framed pixels of four bytes."""
    count, height, width, channels = images.shape
    images = images.contiguous()
    framed = torch.empty(count, height + 2, width + 2, dtype=torch.int32, device=images.device)
    _frame[(triton.cdiv(framed.numel(), 1024),)](
        images, framed, framed.numel(), height, width,
        CHANNELS=channels, BORDER=int(PIXEL_MEAN), INSIDE=int(PIXEL_MEAN + PIXEL_SCALE), BLOCK=1024,
    )  # fmt: skip
    return framed


def inner_size(framed: Tensor) -> tuple[int, int, int]:
    """Cells, height and width."""
    count, height, width = framed.shape[0], framed.shape[1] - 2, framed.shape[2] - 2
    return count * (height // 2) * (width // 2), height, width


def forward(
    framed: Tensor, weights: Tensor, shift: Tensor, keep: bool
) -> tuple[Tensor, Tensor | None]:
    """Framed images, weights bfloat16 [4, 64, F] for the four positions, shift float32 [F].

    Returns pooled bfloat16 [n, H/2, W/2, F] and, if kept, which position won (4: ReLU gave zero),
    uint8, likewise.
    """
    cells, height, width = inner_size(framed)
    filters = weights.shape[2]
    shape = (len(framed), height // 2, width // 2, filters)
    pooled = torch.empty(shape, dtype=torch.bfloat16, device=framed.device)
    winner = torch.empty(shape, dtype=torch.uint8, device=framed.device) if keep else None
    _forward[(program_count(framed, triton.cdiv(cells, 64)),)](
        framed, weights, shift, pooled, winner, cells, height, width,
        ENTRIES=ENTRIES, FILTERS=filters, BLOCK=64, KEEP=keep,
        MEAN=PIXEL_MEAN, SCALE=PIXEL_SCALE, num_warps=8,
    )  # fmt: skip
    return pooled, winner


def backward(framed: Tensor, upstream: Tensor, winner: Tensor) -> Tensor:
    """Σ over cells of row ⊗ gradient of the winner, float32 [4, 64, F]."""
    cells, height, width = inner_size(framed)
    filters, programs = upstream.shape[-1], program_count(framed, triton.cdiv(cells, 64))
    partial = torch.empty(programs, 4, ENTRIES, filters, device=framed.device)
    _backward[(programs,)](
        framed, upstream, winner, partial, cells, height, width,
        ENTRIES=ENTRIES, FILTERS=filters, BLOCK=64, MEAN=PIXEL_MEAN, SCALE=PIXEL_SCALE,
        num_warps=4,
    )  # fmt: skip
    return partial.sum(0)


def products(framed: Tensor) -> Tensor:
    """Σ over cells of row ⊗ row, float64 [64, 64]."""
    cells = inner_size(framed)[0]
    each = triton.cdiv(cells, program_count(framed, triton.cdiv(cells, 128)))
    return _sums_of_products(framed, each).sum(0, dtype=torch.float64)


def image_products(framed: Tensor) -> Tensor:
    """The same for each image, float32 [n, 64, 64]."""
    return _sums_of_products(framed, inner_size(framed)[0] // len(framed))


def _sums_of_products(framed: Tensor, each: int) -> Tensor:
    """Σ over every `each` consecutive cells of row ⊗ row, float32 [parts, 64, 64]."""
    cells, height, width = inner_size(framed)
    parts = triton.cdiv(cells, each)
    partial = torch.empty(parts, ENTRIES, ENTRIES, device=framed.device)
    _products[(parts,)](
        framed, partial, cells, each, height, width,
        ENTRIES=ENTRIES, BLOCK=128, MEAN=PIXEL_MEAN, SCALE=PIXEL_SCALE, num_warps=4,
    )  # fmt: skip
    return partial
