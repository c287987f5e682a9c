"""The operations of derts.kernels.task_operations as kernels: bfloat16 with float32 sums."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# one compilation for all sizes of images and tasks
IMAGE = ("pixels", "height", "width")
SIZES = (*IMAGE, "pooled_pixels", "cells", "context")


@triton.jit(do_not_specialize=IMAGE)
def _convolve(
    values, filters, found, pixels, height, width,
    TAPS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < pixels
    x, y = pixel % width, (pixel // width) % height
    column, output = tl.arange(0, INPUTS), tl.arange(0, OUTPUTS)
    values += task * pixels * INPUTS
    filters += task * TAPS * INPUTS * OUTPUTS
    sums = tl.zeros([BLOCK, OUTPUTS], tl.float32)
    for tap in range(TAPS):
        down = tap // 3 - 1 if TAPS == 9 else 0
        right = tap % 3 - 1 if TAPS == 9 else 0
        there = (y + down >= 0) & (y + down < height) & (x + right >= 0) & (x + right < width)
        at = (pixel + down * width + right)[:, None] * INPUTS + column[None, :]
        value = tl.load(values + at, mask=(inside & there)[:, None], other=0.0)
        from_tap = (tap * INPUTS + column)[:, None] * OUTPUTS + output[None, :]
        sums = tl.dot(value, tl.load(filters + from_tap), sums)
    to = found + (task * pixels + pixel)[:, None] * OUTPUTS + output[None, :]
    tl.store(to, sums.to(found.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _shifted(values, pixel, inside, x, right, width, column, INPUTS: tl.constexpr):
    there = inside & (x + right >= 0) & (x + right < width)
    at = (pixel + right)[:, None] * INPUTS + column[None, :]
    return tl.load(values + at, mask=there[:, None], other=0.0)


@triton.jit(do_not_specialize=IMAGE)
def _filter_gradient(
    values, upstream, partial, pixels, height, width,
    TAPS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    chunk, line, task = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    column, output = tl.arange(0, INPUTS), tl.arange(0, OUTPUTS)
    values += task * pixels * INPUTS
    upstream += task * pixels * OUTPUTS
    down = line - 1 if TAPS == 9 else 0
    middle = tl.zeros([INPUTS, OUTPUTS], tl.float32)
    left = tl.zeros([INPUTS, OUTPUTS], tl.float32)
    right = tl.zeros([INPUTS, OUTPUTS], tl.float32)
    for start in range(chunk * BLOCK, pixels, tl.num_programs(0) * BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        x, y = pixel % width, (pixel // width) % height + down
        inside = pixel < pixels
        at = pixel[:, None] * OUTPUTS + output[None, :]
        arriving = tl.load(upstream + at, mask=inside[:, None], other=0.0)
        inside = inside & (y >= 0) & (y < height)
        there = pixel + down * width
        value = _shifted(values, there, inside, x, 0, width, column, INPUTS)
        middle = tl.dot(tl.trans(value), arriving, middle)
        if TAPS == 9:
            value = _shifted(values, there, inside, x, -1, width, column, INPUTS)
            left = tl.dot(tl.trans(value), arriving, left)
            value = _shifted(values, there, inside, x, 1, width, column, INPUTS)
            right = tl.dot(tl.trans(value), arriving, right)
    partial += (chunk * tl.num_programs(2) + task) * TAPS * INPUTS * OUTPUTS
    at = column[:, None] * OUTPUTS + output[None, :]
    if TAPS == 9:
        at += 3 * line * INPUTS * OUTPUTS
        tl.store(partial + at, left)
        tl.store(partial + at + INPUTS * OUTPUTS, middle)
        tl.store(partial + at + 2 * INPUTS * OUTPUTS, right)
    else:
        tl.store(partial + at, middle)


@triton.jit
def _cells(cell, cells, height, width):
    """Of each cell of 2×2: corner's pixel, its y and x, place among the pooled, if it is one."""
    across, down = (width + 1) // 2, (height + 1) // 2
    image, place = cell // (across * down), cell % (across * down)
    y, x = place // across, place % across
    pooled = (image * (height // 2) + y) * (width // 2) + x
    whole = (cell < cells) & (y < height // 2) & (x < width // 2)
    return image, (image * height + 2 * y) * width + 2 * x, 2 * y, 2 * x, pooled, whole


@triton.jit(do_not_specialize=SIZES)
def _pool(
    values, pooled, places, partial, pixels, pooled_pixels, cells, height, width, context,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    chunk, task = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, CHANNELS)
    values += task * pixels * CHANNELS
    pooled += task * pooled_pixels * CHANNELS
    places += task * pooled_pixels * CHANNELS
    total = tl.zeros([BLOCK, CHANNELS], tl.float32)
    squares = tl.zeros([BLOCK, CHANNELS], tl.float32)
    for start in range(chunk * BLOCK, cells, tl.num_programs(0) * BLOCK):
        cell = start + tl.arange(0, BLOCK)
        image, corner, y, x, out, whole = _cells(cell, cells, height, width)
        at = corner[:, None] * CHANNELS + column[None, :]
        counts = (image < context)[:, None]
        best = tl.full([BLOCK, CHANNELS], float("-inf"), tl.float32)
        number = tl.zeros([BLOCK, CHANNELS], tl.int32)
        for position in tl.static_range(4):
            here = (cell < cells) & (y + position // 2 < height) & (x + position % 2 < width)
            offset = ((position // 2) * width + position % 2) * CHANNELS
            value = tl.load(values + at + offset, mask=here[:, None], other=0.0).to(tl.float32)
            summed = tl.where(counts, value, 0.0)
            total += summed
            squares += summed * summed
            number = tl.where(value > best, position, number)
            best = tl.maximum(best, value)
        to = out[:, None] * CHANNELS + column[None, :]
        tl.store(pooled + to, best.to(pooled.dtype.element_ty), mask=whole[:, None])
        tl.store(places + to, number.to(tl.uint8), mask=whole[:, None])
    partial += (chunk * tl.num_programs(1) + task) * 2 * CHANNELS + column
    tl.store(partial, tl.sum(total, 0))
    tl.store(partial + CHANNELS, tl.sum(squares, 0))


@triton.jit(do_not_specialize=SIZES)
def _spread(
    values, arriving, constant, slope, places, change, pixels, pooled_pixels, cells, height, width,
    context, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    task, column = tl.program_id(1).to(tl.int64), tl.arange(0, CHANNELS)
    values += task * pixels * CHANNELS
    change += task * pixels * CHANNELS
    arriving += task * pooled_pixels * CHANNELS
    places += task * pooled_pixels * CHANNELS
    factor = tl.load(slope + task * CHANNELS + column)[None, :]
    added = tl.load(constant + task * CHANNELS + column)[None, :]
    cell = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    image, corner, y, x, out, whole = _cells(cell, cells, height, width)
    counts = (image < context)[:, None]
    at = corner[:, None] * CHANNELS + column[None, :]
    of = out[:, None] * CHANNELS + column[None, :]
    number = tl.load(places + of, mask=whole[:, None], other=4).to(tl.int32)
    come = tl.load(arriving + of, mask=whole[:, None], other=0.0).to(tl.float32)
    for position in tl.static_range(4):
        here = ((cell < cells) & (y + position // 2 < height) & (x + position % 2 < width))[:, None]
        offset = ((position // 2) * width + position % 2) * CHANNELS
        value = tl.load(values + at + offset, mask=here & counts, other=0.0).to(tl.float32)
        result = tl.where(number == position, come, 0.0)
        result += tl.where(counts, factor * value + added, 0.0)
        tl.store(change + at + offset, result.to(change.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=SIZES)
def _collect(
    change, values, slope, places, to_values, to_arriving, partial, pixels, pooled_pixels, cells,
    height, width, context, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    chunk, task = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, CHANNELS)
    values += task * pixels * CHANNELS
    change += task * pixels * CHANNELS
    to_values += task * pixels * CHANNELS
    to_arriving += task * pooled_pixels * CHANNELS
    places += task * pooled_pixels * CHANNELS
    factor = tl.load(slope + task * CHANNELS + column)[None, :]
    total = tl.zeros([BLOCK, CHANNELS], tl.float32)
    products = tl.zeros([BLOCK, CHANNELS], tl.float32)
    for start in range(chunk * BLOCK, cells, tl.num_programs(0) * BLOCK):
        cell = start + tl.arange(0, BLOCK)
        image, corner, y, x, out, whole = _cells(cell, cells, height, width)
        counts = (image < context)[:, None]
        at = corner[:, None] * CHANNELS + column[None, :]
        of = out[:, None] * CHANNELS + column[None, :]
        number = tl.load(places + of, mask=whole[:, None], other=4).to(tl.int32)
        picked = tl.zeros([BLOCK, CHANNELS], tl.float32)
        for position in tl.static_range(4):
            here = (cell < cells) & (y + position // 2 < height) & (x + position % 2 < width)
            offset = ((position // 2) * width + position % 2) * CHANNELS
            moved = tl.load(change + at + offset, mask=here[:, None], other=0.0).to(tl.float32)
            picked = tl.where(number == position, moved, picked)
            counted = here[:, None] & counts
            value = tl.load(values + at + offset, mask=counted, other=0.0).to(tl.float32)
            moved = tl.where(counts, moved, 0.0)
            total += moved
            products += moved * value
            result = (moved * factor).to(to_values.dtype.element_ty)
            tl.store(to_values + at + offset, result, mask=here[:, None])
        tl.store(to_arriving + of, picked.to(to_arriving.dtype.element_ty), mask=whole[:, None])
    partial += (chunk * tl.num_programs(1) + task) * 2 * CHANNELS + column
    tl.store(partial, tl.sum(total, 0))
    tl.store(partial + CHANNELS, tl.sum(products, 0))


def _chunks(parts: int, steps: int) -> int:
    """Programs that share the steps of each part, together enough for any GPU."""
    return max(1, min(steps, -(-1024 // parts)))


def convolved(values: Tensor, filters: Tensor) -> Tensor:
    """[T, n, H, W, C], [T, 9 or 1, C, F] -> [T, n, H, W, F]."""
    tasks, count, height, width, inputs = values.shape
    taps, outputs, pixels = filters.shape[1], filters.shape[3], count * height * width
    found = values.new_empty(*values.shape[:4], outputs)
    _convolve[(triton.cdiv(pixels, 128), tasks)](
        values.contiguous(), filters.to(values.dtype).contiguous(), found, pixels, height, width,
        TAPS=taps, INPUTS=inputs, OUTPUTS=outputs, BLOCK=128, num_warps=4, num_stages=3,
    )  # fmt: skip
    return found


def filter_gradient(values: Tensor, upstream: Tensor, shape: torch.Size) -> Tensor:
    """Gradient [T, 9 or 1, C, F] of filters of a shape, float32."""
    tasks, count, height, width, inputs = values.shape
    taps, outputs, pixels = shape[1], shape[3], count * height * width
    lines = 3 if taps == 9 else 1
    chunks = _chunks(lines * tasks, triton.cdiv(pixels, 64))
    partial = torch.empty(chunks, *shape, device=values.device)
    _filter_gradient[(chunks, lines, tasks)](
        values.contiguous(), upstream.contiguous(), partial, pixels, height, width,
        TAPS=taps, INPUTS=inputs, OUTPUTS=outputs, BLOCK=64, num_warps=4, num_stages=3,
    )  # fmt: skip
    return partial.sum(0)


def _sizes(values: Tensor) -> tuple[int, int, int, int, int]:
    """Of a task: pixels, pooled pixels, cells; height and width."""
    count, height, width = values.shape[1:4]
    pooled = count * (height // 2) * (width // 2)
    cells = count * ((height + 1) // 2) * ((width + 1) // 2)
    return count * height * width, pooled, cells, height, width


def pool(values: Tensor, context: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """max-pool 2; which ones were the largest; Σ y; Σ y²."""
    tasks, count, height, width, channels = values.shape
    pooled = values.new_empty(tasks, count, height // 2, width // 2, channels)
    places = torch.empty_like(pooled, dtype=torch.uint8)
    sizes, block = _sizes(values), 1024 // channels
    chunks = _chunks(tasks, triton.cdiv(sizes[2], block))
    partial = torch.empty(chunks, tasks, 2, channels, device=values.device)
    _pool[(chunks, tasks)](
        values, pooled, places, partial, *sizes, context,
        CHANNELS=channels, BLOCK=block, num_warps=4,
    )  # fmt: skip
    total, squares = partial.sum(0).unbind(1)
    return pooled, places, total, squares


def spread(
    values: Tensor, arriving: Tensor, constant: Tensor, slope: Tensor, places: Tensor, context: int
) -> Tensor:
    """What arrives at the largest; the context + constant + slope y."""
    sizes, channels = _sizes(values), values.shape[-1]
    change, block = torch.empty_like(values), 1024 // channels
    _spread[(triton.cdiv(sizes[2], block), len(values))](
        values, arriving, constant.contiguous(), slope.contiguous(), places, change,
        *sizes, context, CHANNELS=channels, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return change


def collect(
    change: Tensor, values: Tensor, slope: Tensor, places: Tensor, context: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For a change of what `spread` gives: those of its arguments, in their order."""
    sizes, channels, tasks = _sizes(values), values.shape[-1], len(values)
    to_values, to_arriving = torch.empty_like(values), torch.empty_like(places, dtype=values.dtype)
    block = 1024 // channels
    chunks = _chunks(tasks, triton.cdiv(sizes[2], block))
    partial = torch.empty(chunks, tasks, 2, channels, device=values.device)
    _collect[(chunks, tasks)](
        change, values, slope.contiguous(), places, to_values, to_arriving, partial,
        *sizes, context, CHANNELS=channels, BLOCK=block, num_warps=4,
    )  # fmt: skip
    total, products = partial.sum(0).unbind(1)
    return to_values, to_arriving, total, products
