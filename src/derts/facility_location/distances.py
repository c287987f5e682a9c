"""Euclidean distances between rows, kept or recomputed, that add up without rounding.

Each distance is a float32 and a multiple of one quantum, chosen so small that float32 hardly
notices and so large that a float64 sum over all rows is exact. A gain therefore has one value,
whatever the order of summation, the engine or the device, and incremental updates do not drift.
"""

import math
from collections.abc import Iterator
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from derts.errors import DertsError

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]
Entries = tuple[NDArray[np.int32], Floats, Integers]

# Relative error of float32 sums of terms none of which is negative, 1024 at most in sequence.
QUICK_ERROR = 1032 * 2.0**-24
CHEAP_DIMENSIONS = 24  # up to here a single row costs next to nothing
BLOCK_ENTRIES = 1 << 20  # fewer, and starting the threads costs more than the work
PRODUCT_ROWS = 256  # a matrix product of fewer rows waits for memory
GRID = 2.0**25  # coordinates are multiples of 1 / GRID: squared distances fit into float64 exactly


def rounder(count: int) -> float:
    """Added to a distance ≤ 1 and subtracted again, rounds it to a multiple of the quantum.

    The quantum is 2⁻²³ of it, so that ``count`` distances add up to less than 2⁵³ quanta.
    """
    return 2.0 ** (math.ceil(math.log2(count)) - 29)


def unit_points(points: Tensor) -> tuple[Tensor, float]:
    """Centred float64 points on the grid, all distances ≤ 1, and the power of two divided out."""
    # On the CPU, so that the norm is the same for every device.
    wide = points.double().cpu()
    least, most = wide.aminmax(dim=0)
    # Halved, and in units of the largest, so that no square is too large or small for float64.
    half = most / 2 - least / 2
    largest = math.frexp(float(half.max()))[1] if half.numel() else 0
    bound = 2 * float(np.linalg.norm(np.ldexp(half.numpy(), -largest))) * 1.001
    power = math.ceil(math.log2(bound)) + largest if bound > 0 else 0
    if power + math.log2(len(wide)) > 1020:
        raise DertsError("rows are too far apart for float64: divide the matrix by a constant")
    scale = 2.0**power
    grid = (wide - (least + half)).div_(scale).mul_(GRID).round_().div_(GRID)
    return grid.to(points.device), scale


def factors(grid: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices [N, d + 2] and [d + 2, N] whose product is the squared distances [N, N].

    Every term and partial sum is a multiple of 1 / GRID² below 4, so float64 holds it exactly.
    """
    norms = grid.square().sum(1, keepdim=True)
    ones = torch.ones_like(norms)
    return torch.cat((grid, norms, ones), 1), torch.cat((-2 * grid, ones, norms), 1).T.contiguous()


class Distances:
    """The distance matrix of ``points`` [N, d] on the CPU, in units of ``scale``; all ≤ 1.

    Kept in memory if it needs at most ``memory_limit_gib``, else recomputed by blocks of rows.
    Symmetric, and the same on every device, bit for bit. Quick sums are float32 and err by
    QUICK_ERROR at most.
    """

    def __init__(self, points: Tensor, memory_limit_gib: float) -> None:
        self.count, dimensions = points.shape
        grid, self.scale = unit_points(points)
        self._left, self._right = factors(grid)
        self._rounder = rounder(self.count)
        keep = 4 * self.count**2 <= memory_limit_gib * 2**30
        cheap = dimensions <= CHEAP_DIMENSIONS
        height = max(4, BLOCK_ENTRIES // self.count) if keep or cheap else PRODUCT_ROWS
        self._height = min(self.count, height)
        # Reused by every pass: fresh arrays of this size cost page faults, the more so from torch.
        self._block = self._empty(self._height)
        self._squares = torch.from_numpy(np.empty((self._height, self.count)))
        self._totals: list[tuple[Tensor, Tensor]] = []
        self._kept = self._filled(mirror=not cheap) if keep else None

    def _empty(self, height: int) -> Tensor:
        return torch.from_numpy(np.empty((height, self.count), np.float32))

    def _parts(self, count: int) -> Iterator[slice]:
        for start in range(0, count, self._height):
            yield slice(start, min(start + self._height, count))

    def _filled(self, mirror: bool) -> Tensor:
        """All of it, or, where products are dear, one triangle and its mirror image."""
        matrix = self._empty(self.count)
        for rows in self._parts(self.count):
            first = rows.start if mirror else 0
            block = self._compute(rows, first, matrix[rows, first:])
            if mirror:
                matrix[rows.stop :, rows] = matrix[rows, rows.stop :].T
            else:  # while the block is still in the cache
                self._totals.append((block.sum(1), block.amax()))
        return matrix

    def _compute(self, rows: slice | Tensor, first: int, out: Tensor) -> Tensor:
        squares = self._squares.view(-1)[: out.numel()].view(out.shape)
        out.copy_(torch.mm(self._left[rows], self._right[:, first:], out=squares))
        # Not torch's root, which is not always the nearest float32.
        np.sqrt(out.numpy(), out=out.numpy())
        return out.add_(self._rounder).sub_(self._rounder)

    def _blocks(self, indices: Integers | None = None) -> Iterator[tuple[slice, Tensor]]:
        """All rows, or those at indices, block by block, each in the memory of the one before."""
        chosen = None if indices is None else torch.from_numpy(indices)
        for part in self._parts(self.count if chosen is None else len(chosen)):
            block = self._block[: part.stop - part.start]
            if self._kept is None:
                self._compute(part if chosen is None else chosen[part], 0, block)
            elif chosen is None:
                block = self._kept[part]
            else:
                torch.index_select(self._kept, 0, chosen[part], out=block)
            yield part, block

    def row(self, index: int) -> Floats:
        """Distances of one row to all rows, float32 [N]; not to be changed."""
        if self._kept is None:
            return cast(Floats, self.rows(np.array([index]))[0])
        return cast(Floats, self._kept[index].numpy())

    def rows(self, indices: Integers) -> Floats:
        """Distances of the rows ``indices`` [b] to all rows, float32 [b, N]; a fresh array."""
        found = self._empty(len(indices))
        for part, block in self._blocks(indices):
            found[part] = block
        return cast(Floats, found.numpy())

    def totals(self) -> tuple[Doubles, float]:
        """The sum of each row, quick, float64 [N], and the largest distance."""
        if not self._totals:
            self._totals = [(block.sum(1), block.amax()) for _, block in self._blocks()]
        sums, largest = zip(*self._totals, strict=True)
        return _array(torch.cat(sums)), float(torch.stack(largest).max())

    def gains(self, cap: Floats) -> Doubles:
        """Σ_j max(0, cap_j − D_ij) for each row i, quick, float64 [N]."""
        limit, sums = torch.from_numpy(cap), []
        for _, block in self._blocks():
            out = self._block[: len(block)]
            sums.append(torch.sub(limit, block, out=out).clamp_(min=0).sum(1))
        return _array(torch.cat(sums))

    def exact_gains(self, indices: Integers, cap: Floats) -> Doubles:
        """Σ_j max(0, cap_j − D_ij) for each i of ``indices`` [b], exact, float64 [b]."""
        limit, capped = torch.from_numpy(cap), []
        for _, block in self._blocks(indices):
            # The smaller of two float32 is exact; their difference would not be.
            capped.append(torch.minimum(block, limit, out=block).sum(1, dtype=torch.float64))
        return _array(limit.sum(dtype=torch.float64) - torch.cat(capped))

    def lost_gains(self, indices: Integers, low: Floats, high: Floats) -> Doubles:
        """What each candidate i loses when the caps of rows ``indices`` fall from high to low.

        Σ_j high_j − clip(D_ji, low_j, high_j), quick, float64 [N].
        """
        lower, upper = torch.from_numpy(low)[:, None], torch.from_numpy(high)[:, None]
        lost = torch.zeros(self.count, dtype=torch.float64)
        for part, block in self._blocks(indices):
            torch.maximum(block, lower[part], out=block)
            lost += torch.sub(upper[part], block, out=block).clamp_(min=0).sum(0)
        return _array(lost)

    def below(self, cap: Floats) -> Entries:
        """All entries D_ji < cap_j, row by row: columns i int32 [E], values float32 [E] and where
        each row begins, int64 [N + 1].
        """
        columns, values, lengths = [], [], []
        for rows, block in self._blocks():
            flat = np.flatnonzero(block.numpy() < cap[rows, None])  # torch takes twice as long
            starts = np.arange(len(block) + 1) * self.count
            found = np.diff(np.searchsorted(flat, starts))
            values.append(block.numpy().reshape(-1).take(flat))
            columns.append((flat - starts[:-1].repeat(found)).astype(np.int32))
            lengths.append(found)
        begins = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
        return np.concatenate(columns), np.concatenate(values), begins


def _array(values: Tensor) -> Doubles:
    return cast(Doubles, values.double().numpy())
