"""Euclidean distances between rows, kept or recomputed, that add up without rounding.

Each distance is a float32 and a multiple of one quantum, chosen so small that float32 hardly
notices and so large that a float64 sum over all rows is exact. A gain therefore has one value,
whatever the order of summation, the engine or the device, and incremental updates do not drift.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from derts.selection.facility_matrix import Doubles, Entries, Floats, Integers

Part = TypeVar("Part")

DIRECT_DIMENSIONS = 24  # up to here differences are as fast as a matrix product, and exact
BLOCK_ENTRIES = 1 << 16  # a block and its scratch stay in the second-level cache
PRODUCT_ROWS = 256  # a matrix product of fewer rows waits for memory
CLOSE = 2.0**-20  # squared distance, of at most 1, below which a product is too inexact


def rounder(count: int) -> float:
    """Added to a distance ≤ 1 and subtracted again, rounds it to a multiple of the quantum.

    The quantum is 2⁻²³ of it, so that ``count`` distances add up to less than 2⁵³ quanta.
    """
    return 2.0 ** (math.ceil(math.log2(count)) - 29)


def unit_points(points: Tensor) -> tuple[Tensor, float]:
    """Centred float64 points with all distances ≤ 1, and the power of two divided out."""
    spread = (points.amax(0).double() - points.amin(0).double()).cpu()
    # Halving first keeps the norm of the largest inputs finite.
    bound = 2 * float(torch.linalg.vector_norm(spread / 2)) * 1.001
    scale = 2.0 ** math.ceil(math.log2(bound)) if bound > 0 else 1.0
    # On the CPU, so that the mean is the same for every device.
    wide = points.double().cpu()
    return ((wide - wide.mean(0)) / scale).to(points.device), scale


class Distances:
    """The distance matrix of ``points`` [N, d] on the CPU, in units of ``scale``; all ≤ 1.

    Kept in memory if it needs at most ``memory_limit_gib``, else recomputed by blocks of rows.
    Small d: by differences, bit for bit the same on every device and exactly symmetric. Larger d:
    by a centred float64 matrix product, with close pairs by differences; kept matrices are
    exactly symmetric, recomputed ones up to the last float32 bit of rare entries.

    >>> distances = Distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), memory_limit_gib=1.0)
    >>> distances.row(0) * distances.scale
    array([0., 5.], dtype=float32)
    """

    def __init__(self, points: Tensor, memory_limit_gib: float) -> None:
        self.count, dimensions = points.shape
        centred, self.scale = unit_points(points)
        self._centred: Doubles = centred.numpy()
        self._points: Floats = self._centred.astype(np.float32)
        self._by_differences = dimensions <= DIRECT_DIMENSIONS
        self._columns = np.ascontiguousarray(self._points.T)
        self._norms: Doubles = np.square(self._centred).sum(1)
        self._rounder = np.float32(rounder(self.count))
        self._height = max(1, min(self.count, max(4, BLOCK_ENTRIES // self.count)))
        self._workers = max(1, torch.get_num_threads()) if self.count > 500 else 1
        self.cheap_rows = self._by_differences
        self._pool = ThreadPoolExecutor(self._workers)
        self._kept: Floats | None = None
        if 4 * self.count**2 <= memory_limit_gib * 2**30:
            kept: Floats = np.empty((self.count, self.count), np.float32)
            (self._fill if self._by_differences else self._fill_symmetric)(kept)
            self._kept = kept
            self.cheap_rows = True
        if not self.cheap_rows:
            self._height = min(self.count, PRODUCT_ROWS)

    def _fill(self, matrix: Floats) -> None:
        self._each(lambda rows, scratch: self._compute(rows, 0, matrix[rows], scratch[0]))

    def _fill_symmetric(self, matrix: Floats) -> None:
        for start in range(0, self.count, 128):
            stop = min(start + 128, self.count)
            part = matrix[start:stop, start:]
            self._compute(slice(start, stop), start, part, part)
            matrix[stop:, start:stop] = matrix[start:stop, stop:].T
            square = matrix[start:stop, start:stop]
            square[:] = np.triu(square) + np.triu(square, 1).T

    def _each(self, work: Callable[[slice, Floats], Part], count: int | None = None) -> list[Part]:
        """``work(block, scratch [2, b, N])`` for blocks of ``count`` rows.

        One long job per thread with one scratch: fresh arrays of this size cost page faults.
        """
        count = self.count if count is None else count
        blocks = [slice(a, min(a + self._height, count)) for a in range(0, count, self._height)]

        def job(some: list[slice]) -> list[Part]:
            scratch = np.empty((2, self._height, self.count), np.float32)
            return [work(block, scratch[:, : block.stop - block.start]) for block in some]

        # Matrix products bring their own threads.
        workers = self._workers if self.cheap_rows else 1
        if workers == 1 or len(blocks) < 2 * workers:
            return job(blocks)
        share = -(-len(blocks) // workers)
        shares = (blocks[a : a + share] for a in range(0, len(blocks), share))
        return [part for parts in self._pool.map(job, shares) for part in parts]

    def _compute(self, rows: slice | Integers, first: int, out: Floats, scratch: Floats) -> Floats:
        if self._by_differences:
            points = self._points[rows]
            np.subtract(points[:, 0, None], self._columns[0, first:], out=out)
            np.multiply(out, out, out=out)
            for dimension in range(1, points.shape[1]):
                # No fused multiply-add: it rounds differently from device to device.
                column = self._columns[dimension, first:]
                np.subtract(points[:, dimension, None], column, out=scratch)
                np.multiply(scratch, scratch, out=scratch)
                np.add(out, scratch, out=out)
        else:
            left, right = self._centred[rows], self._centred[first:]
            product = torch.mm(torch.from_numpy(left), torch.from_numpy(right.T)).mul_(-2)
            squares: Doubles = product.numpy()
            squares += self._norms[rows][:, None] + self._norms[first:]
            near, other = np.divmod(np.flatnonzero(squares < CLOSE), len(right))
            step = max(1, (1 << 22) // left.shape[1])
            for start in range(0, len(near), step):
                a, b = near[start : start + step], other[start : start + step]
                squares[a, b] = np.square(left[a] - right[b]).sum(1)
            out[:] = squares
        np.sqrt(out, out=out)
        np.add(out, self._rounder, out=out)
        np.subtract(out, self._rounder, out=out)
        return out

    def _view(self, rows: slice, scratch: Floats) -> Floats:
        if self._kept is not None:
            return self._kept[rows]
        return self._compute(rows, 0, scratch[0], scratch[1])

    def _gather(self, indices: Integers, scratch: Floats) -> Floats:
        if self._kept is not None:
            # "clip" writes to ``out`` at once, "raise" by way of a copy.
            out: Floats = scratch[0]
            np.take(self._kept, indices, axis=0, out=out, mode="clip")
            return out
        return self._compute(indices, 0, scratch[0], scratch[1])

    def row(self, index: int) -> Floats:
        row: Floats = (
            self._kept[index] if self._kept is not None else self.rows(np.array([index]))[0]
        )
        return row

    def rows(self, indices: Integers) -> Floats:
        return self._gather(indices, np.empty((2, len(indices), self.count), np.float32))

    def totals(self) -> tuple[Doubles, float]:
        def work(rows: slice, scratch: Floats) -> tuple[Floats, np.float32]:
            view = self._view(rows, scratch)
            return view.sum(1), view.max()

        sums, largest = zip(*self._each(work), strict=True)
        return np.concatenate(sums).astype(np.float64), float(max(largest))

    def gains(self, cap: Floats) -> Doubles:
        # A maximum with a whole block of zeros is four times as fast as one with a number.
        zeros = np.zeros((self._height, self.count), np.float32)

        def work(rows: slice, scratch: Floats) -> Floats:
            positive = np.subtract(cap, self._view(rows, scratch), out=scratch[0])
            np.maximum(positive, zeros[: len(positive)], out=positive)
            summed: Floats = positive.sum(1)
            return summed

        return np.concatenate(self._each(work)).astype(np.float64)

    def exact_gains(self, indices: Integers, cap: Floats) -> Doubles:
        def work(part: slice, scratch: Floats) -> Doubles:
            block = self._gather(indices[part], scratch)
            # The smaller of two float32 is exact; their difference would not be.
            sums: Doubles = np.minimum(block, cap, out=block).sum(1, dtype=np.float64)
            return sums

        capped = np.concatenate(self._each(work, len(indices)))
        gains: Doubles = cap.sum(dtype=np.float64) - capped
        return gains

    def lost_gains(self, indices: Integers, low: Floats, high: Floats) -> Doubles:
        lost = np.zeros(self.count)
        batch = 256 * self._height  # bounds the memory of the partial sums
        for start in range(0, len(indices), batch):
            some = indices[start : start + batch]
            lower, upper = low[start : start + batch, None], high[start : start + batch, None]
            work = partial(self._lost, some, lower, upper)
            for summed in self._each(work, len(some)):
                lost += summed
        return lost

    def _lost(
        self, indices: Integers, low: Floats, high: Floats, part: slice, scratch: Floats
    ) -> Floats:
        block = self._gather(indices[part], scratch)
        np.clip(block, low[part], high[part], out=block)
        summed: Floats = np.subtract(high[part], block, out=block).sum(0)
        return summed

    def below(self, cap: Floats) -> Entries:
        def work(rows: slice, scratch: Floats) -> Entries:
            block = self._view(rows, scratch)
            flat = np.less(block, cap[rows, None]).reshape(-1).nonzero()[0]
            ends = np.searchsorted(flat, np.arange(1, len(block) + 1) * self.count)
            values = block.reshape(-1).take(flat)
            return (flat % self.count).astype(np.int32), values, np.diff(ends, prepend=0)

        columns, values, lengths = zip(*self._each(work), strict=True)
        begins = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
        return np.concatenate(columns), np.concatenate(values), begins
