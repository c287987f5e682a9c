"""Greedy on a GPU, where one of the hand-written kernels can do it: the CPU's answer."""

import importlib.util
from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from derts.facility_location.distances import (
    Doubles,
    Floats,
    Integers,
    factors,
    rounder,
    unit_points,
)

BLOCK_ENTRIES = 1 << 26
KERNEL_ROWS = 1 << 14  # each of the kernel's programs holds a number for every row
KERNEL_DIMENSIONS = 32  # more, and a matrix product in float64 pays
MOST_CANDIDATES = 64  # for one pick: each has a program, and all run at once
LARGE_ROWS = 1 << 17  # each program of the kernel without a matrix holds a 128th of the gains


def kernels_run_on(device: torch.device) -> bool:
    """Whether the kernels can run: on an NVIDIA GPU, with Triton installed."""
    nvidia = device.type == "cuda" and torch.version.hip is None
    return nvidia and importlib.util.find_spec("triton") is not None


def greedy_on_gpu(
    points: Tensor, k: int, memory_limit_gib: float, places: Integers | None = None
) -> tuple[Integers, Doubles, Floats, Integers, float] | None:
    """The exact greedy picks among ``points`` [N, d]; None where no kernel can find them.

    With ``places``, `greedy.candidate_places`, those of stochastic greedy. Returns picks int64 [K],
    gains float64 [K], distances to the nearest pick float32 [N], that pick's position int64 [N],
    and the unit of gains and distances.
    """
    if not kernels_run_on(points.device):
        return None
    distances = DeviceDistances(points, memory_limit_gib)
    if places is not None:
        if distances.kept is None or places.shape[1] > MOST_CANDIDATES:
            return None
        from derts.facility_location.gpu_stochastic import stochastic_kept

        found = stochastic_kept(distances.kept, torch.from_numpy(places))
    elif distances.kept is None and (len(points) > LARGE_ROWS or not distances.by_kernel):
        return None
    else:
        found = distances.greedy(k)
    parts = (*found, distances.assign(found[0], found[2]))
    # All in one piece, for each would wait for the device; float64 holds them exactly.
    together = torch.cat([values.double() for values in parts]).cpu()
    picks, gains, nearest, assignment = (
        part.numpy() for part in together.split([len(values) for values in parts])
    )
    places, single = assignment.astype(np.int64), nearest.astype(np.float32)
    return picks.astype(np.int64), gains, single, places, distances.scale


class DeviceDistances:
    """The distance matrix of ``points`` [N, d] on their device, in units of ``scale``.

    ``kept`` float32 [N, N], where a kernel can use it and it needs at most ``memory_limit_gib``;
    else blocks of rows are computed where they are needed. The same numbers as `Distances`.
    """

    def __init__(self, points: Tensor, memory_limit_gib: float) -> None:
        self.count = len(points)
        grid, self.scale = unit_points(points)
        self._grid = grid.contiguous()  # the kernel goes by rows
        self._rounder = rounder(self.count)
        self.by_kernel = kernels_run_on(grid.device) and grid.shape[1] <= KERNEL_DIMENSIONS
        self._height = max(1, min(self.count, BLOCK_ENTRIES // self.count))
        self.kept: Tensor | None = None
        if self.count <= KERNEL_ROWS and 4 * self.count**2 <= memory_limit_gib * 2**30:
            blocks = list(self._blocks())
            self.kept = blocks[0] if len(blocks) == 1 else torch.cat(blocks)

    @cached_property
    def _factors(self) -> tuple[Tensor, Tensor]:
        return factors(self._grid)

    def _blocks(self) -> Iterator[Tensor]:
        for start in range(0, self.count, self._height):
            yield self._block(slice(start, start + self._height))

    def _block(self, rows: slice | Tensor) -> Tensor:
        """Float32 [b, N]; fresh, or a view of the kept matrix for a slice."""
        if self.kept is not None:
            return self.kept[rows]
        if self.by_kernel:
            from derts.facility_location.gpu_kernels import pair_distances

            return pair_distances(self._grid[rows].contiguous(), self._grid, self._rounder)
        left, right = self._factors
        out = (left[rows] @ right).float()
        # By way of float64, because torch's float32 root on the CPU is not the nearest float32.
        return out.double().sqrt_().float().add_(self._rounder).sub_(self._rounder)

    def greedy(self, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Picks, gains and distances to the nearest pick by one kernel, with nothing read back."""
        if self.kept is not None:
            from derts.facility_location.gpu_kernels import greedy_kept

            return greedy_kept(self.kept, k)
        from derts.facility_location.gpu_kernels import greedy_large

        sums, largest = zip(
            *((block.sum(1, dtype=torch.float64), block.max()) for block in self._blocks()),
            strict=True,
        )
        left, right = self._factors
        most = float(torch.stack(largest).max())
        return greedy_large(left, right, self._rounder, torch.cat(sums), most, k)

    def assign(self, picks: Tensor, nearest: Tensor) -> Tensor:
        """Position in ``picks`` [K] of each row's nearest pick, int64 [N]; nothing read back.

        As `selection.assign`.
        """
        owner = torch.full((self.count,), self.count, device=picks.device)
        for some in picks.split(self._height):
            at_nearest = self._block(some) == nearest
            owner = torch.minimum(owner, torch.where(at_nearest, some[:, None], owner).amin(0))
        owner[picks] = picks
        position = torch.empty(len(owner), dtype=torch.int64, device=picks.device)
        position[picks] = torch.arange(len(picks), device=picks.device)
        return position[owner]
