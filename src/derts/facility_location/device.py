"""Facility location on an accelerator: the arithmetic where the points are."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from derts.facility_location.distances import factors, rounder, unit_points
from derts.facility_location.matrix import Doubles, Entries, Floats, Integers
from derts.kernels import usable_on

BLOCK_ENTRIES = 1 << 26
KERNEL_ROWS = 1 << 14  # each of the kernel's programs holds a number for every row
KERNEL_DIMENSIONS = 32  # more, and a matrix product in float64 pays
LARGE_ROWS = 1 << 17  # each program of the kernel without a matrix holds a 128th of the gains
WITHOUT_WAITING_ROWS = 8192  # more, and summing everything for each pick no longer pays


class DeviceDistances:
    """As :class:`Distances`, on the device of ``points`` [N, d]; answers come back as arrays.

    >>> distances = DeviceDistances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), memory_limit_gib=1.0)
    >>> distances.row(0) * distances.scale
    array([0., 5.], dtype=float32)
    """

    cheap_rows = False  # each is a round trip to the device

    def __init__(self, points: Tensor, memory_limit_gib: float) -> None:
        self.count = len(points)
        grid, self.scale = unit_points(points)
        self._grid = grid.contiguous()  # the kernel goes by rows
        self._height = max(1, min(self.count, BLOCK_ENTRIES // self.count))
        self.kept: Tensor | None = None
        if 4 * self.count**2 <= memory_limit_gib * 2**30:
            blocks = [self._block(rows) for rows in self._slices(self.count)]
            self.kept = blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    @cached_property
    def _factors(self) -> tuple[Tensor, Tensor]:
        return factors(self._grid)

    def _slices(self, count: int) -> list[slice]:
        return [slice(a, min(a + self._height, count)) for a in range(0, count, self._height)]

    def _send(self, array: Integers | Floats) -> Tensor:
        return torch.from_numpy(array).to(self._grid.device)

    def _block(self, rows: slice | Tensor) -> Tensor:
        """Float32 [b, N]; fresh, or a view of the kept matrix for a slice."""
        if self.kept is not None:
            return self.kept[rows]
        if self._by_kernel:
            from derts.facility_location.distance_kernel import distances

            return distances(self._grid[rows].contiguous(), self._grid, rounder(self.count))
        left, right = self._factors
        out = (left[rows] @ right).float()
        # By way of float64, because torch's float32 root on the CPU is not the nearest float32.
        return out.double().sqrt_().float().add_(rounder(self.count)).sub_(rounder(self.count))

    @property
    def _by_kernel(self) -> bool:
        return usable_on(self._grid.device) and self._grid.shape[1] <= KERNEL_DIMENSIONS

    def row(self, index: int) -> Floats:
        found: Floats = self._block(slice(index, index + 1))[0].cpu().numpy()
        return found

    def rows(self, indices: Integers) -> Floats:
        found: Floats = self._block(self._send(indices)).cpu().numpy()
        return found

    def totals(self) -> tuple[Doubles, float]:
        sums, largest = self._totals()
        return sums.cpu().numpy(), largest

    def _totals(self) -> tuple[Tensor, float]:
        blocks = map(self._block, self._slices(self.count))
        sums, largest = zip(
            *((block.sum(1, dtype=torch.float64), block.max()) for block in blocks), strict=True
        )
        return torch.cat(sums), float(torch.stack(largest).max())

    def gains(self, cap: Floats) -> Doubles:
        return self.exact_gains(np.arange(self.count), cap)

    def exact_gains(self, indices: Integers, cap: Floats) -> Doubles:
        limit, index = self._send(cap), self._send(indices)
        capped = [
            torch.minimum(self._block(index[part]), limit).sum(1, dtype=torch.float64)
            for part in self._slices(len(indices))
        ]
        gains: Doubles = (limit.double().sum() - torch.cat(capped)).cpu().numpy()
        return gains

    def lost_gains(self, indices: Integers, low: Floats, high: Floats) -> Doubles:
        index, lower, upper = self._send(indices), self._send(low), self._send(high)
        lost = torch.zeros(self.count, dtype=torch.float64, device=self._grid.device)
        for part in self._slices(len(indices)):
            clipped = self._block(index[part]).clamp(lower[part, None], upper[part, None])
            lost += upper[part].double().sum() - clipped.sum(0, dtype=torch.float64)
        found: Doubles = lost.cpu().numpy()
        return found

    def below(self, cap: Floats) -> Entries:
        limit, columns, values, lengths = self._send(cap), [], [], []
        for part in self._slices(self.count):
            block = self._block(part)
            mask = block < limit[part, None]
            lengths.append(mask.sum(1).cpu().numpy())
            columns.append(mask.nonzero()[:, 1].int().cpu().numpy())
            values.append(block[mask].cpu().numpy())
        begins = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
        return np.concatenate(columns), np.concatenate(values), begins

    def greedy(self, k: int) -> tuple[Tensor, ...] | None:
        """Picks, gains, distances to the nearest pick and who stands for whom, on the device.

        None where nothing here is quicker than the engine that also serves the CPU.
        """
        kernels = usable_on(self._grid.device)
        if self.kept is not None and self.count <= (
            KERNEL_ROWS if kernels else WITHOUT_WAITING_ROWS
        ):
            found = greedy_on_device(self.kept, k)
            return (*found, assign_on_device(self.kept, found[0], found[2]))
        if not self._by_kernel or self.count > LARGE_ROWS:
            return None
        from derts.facility_location.greedy_large_kernel import greedy_large

        sums, largest = self._totals()
        left, right = self._factors
        picks, gains, nearest = greedy_large(left, right, rounder(self.count), sums, largest, k)
        return picks, gains, nearest, self.assign(picks, nearest)

    def assign(self, picks: Tensor, nearest: Tensor) -> Tensor:
        """As `assign_on_device`, by blocks of picks."""
        owner = torch.full((self.count,), self.count, device=picks.device)
        for some in picks.split(self._height):
            at_nearest = self._block(some) == nearest
            owner = torch.minimum(owner, torch.where(at_nearest, some[:, None], owner).amin(0))
        return _positions(owner, picks)


def greedy_on_device(matrix: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Exact greedy on a kept matrix [N, N], nothing read back: by one kernel where it can run."""
    if usable_on(matrix.device):
        from derts.facility_location.greedy_kernel import greedy

        return greedy(matrix, k)
    return greedy_without_waiting(matrix, k)


def assign_on_device(matrix: Tensor, picks: Tensor, nearest: Tensor) -> Tensor:
    """Position in ``picks`` [K] of each row's nearest pick, int64 [N]; ties as everywhere.

    >>> matrix = (torch.tensor([[0.0], [1.0], [5.0]]) - torch.tensor([0.0, 1.0, 5.0])).abs()
    >>> picks, _, nearest = greedy_without_waiting(matrix, 2)
    >>> assign_on_device(matrix, picks, nearest)
    tensor([0, 0, 1])
    """
    count = len(matrix)
    at_nearest = matrix.index_select(0, picks) == nearest
    owner = torch.where(at_nearest, picks[:, None], count).amin(0)
    return _positions(owner, picks)


def _positions(owner: Tensor, picks: Tensor) -> Tensor:
    """Numbers of rows that stand for each row [N] -> their positions in picks."""
    owner[picks] = picks  # a pick stands for itself
    position = torch.empty(len(owner), dtype=torch.int64, device=picks.device)
    position[picks] = torch.arange(len(picks), device=picks.device)
    return position[owner]


def greedy_without_waiting(matrix: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Exact greedy on a kept matrix [N, N]: fixed shapes, nothing read back, for a graph.

    All gains are summed afresh for each pick, K·N² in all, which an accelerator does faster than
    it launches kernels for less. Returns picks int64 [K], gains float64 [K] and each row's
    distance to its nearest pick, float32 [N], all on the device.

    >>> matrix = (torch.tensor([[0.0], [1.0], [5.0]]) - torch.tensor([0.0, 1.0, 5.0])).abs()
    >>> greedy_without_waiting(matrix, 2)[0]
    tensor([1, 2])
    """
    nearest = matrix.max().expand(len(matrix)).clone()
    picked_gain = torch.zeros(len(matrix), dtype=torch.float64, device=matrix.device)
    picks = torch.empty(k, dtype=torch.int64, device=matrix.device)
    gains = torch.empty(k, dtype=torch.float64, device=matrix.device)
    minus_infinity = torch.full((1,), -torch.inf, dtype=torch.float64, device=matrix.device)
    for position in range(k):
        capped = torch.minimum(matrix, nearest).sum(1, dtype=torch.float64)
        current = nearest.double().sum() - capped + picked_gain
        # argmax promises the first of equal values, so ties go to the lowest index.
        pick = current.argmax().view(1)
        picks[position : position + 1] = pick
        gains[position : position + 1] = current.index_select(0, pick)
        picked_gain.index_copy_(0, pick, minus_infinity)
        nearest = torch.minimum(nearest, matrix.index_select(0, pick)[0])
    return picks, gains, nearest
