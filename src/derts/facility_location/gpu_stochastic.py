"""Stochastic greedy as a hand-written GPU kernel (Triton)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from derts.facility_location.gpu_kernels import meet


@triton.jit
def _stochastic_kept(
    matrix, nearest, places, remaining, best_sum, best_row, best_place, arrivals,
    picks, picked_gains, count, k, size,
    ROWS: tl.constexpr, PROGRAMS: tl.constexpr, NOBODY: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    everyone = tl.arange(0, ROWS)
    inside = everyone < count
    limit = tl.load(nearest + everyone, mask=inside, other=0.0)
    left = remaining + program * ROWS
    for position in range(k):
        known = program < tl.minimum(size, count - position)
        place = tl.load(places + position * size + program, mask=known, other=0)
        row = tl.load(left + place)
        distance = tl.load(matrix + row.to(tl.int64) * count + everyone, mask=inside, other=0.0)
        total = tl.sum(tl.minimum(distance, limit).to(tl.float64), 0)
        side = (position % 2) * PROGRAMS  # two sets of slots in turn: nobody is two picks ahead
        tl.store(best_sum + side + program, tl.where(known, total, float("inf")))
        tl.store(best_row + side + program, row)
        tl.store(best_place + side + program, place)
        meet(arrivals, (position + 1) * PROGRAMS)
        slots = side + tl.arange(0, PROGRAMS)
        sums = tl.load(best_sum + slots, cache_modifier=".cg")
        rows = tl.load(best_row + slots, cache_modifier=".cg")
        their_places = tl.load(best_place + slots, cache_modifier=".cg")
        least = tl.min(sums, 0)
        pick = tl.min(tl.where(sums == least, rows, NOBODY), 0)
        gap = tl.min(tl.where((sums == least) & (rows == pick), their_places, NOBODY), 0)
        if program == 0:
            tl.store(picks + position, pick)
            tl.store(picked_gains + position, tl.sum(limit.to(tl.float64), 0) - least)
        last = tl.load(left + count - 1 - position)
        tl.debug_barrier()
        tl.store(left + gap, last)
        tl.debug_barrier()
        distance = tl.load(matrix + pick.to(tl.int64) * count + everyone, mask=inside, other=0.0)
        limit = tl.minimum(limit, distance)
    if program == 0:
        tl.store(nearest + everyone, limit, mask=inside)


def stochastic_kept(matrix: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distances float32 [N, N] and `greedy.candidate_places` [K, size] -> the picks of stochastic
    greedy, as `greedy_kept` returns its own. A program looks at one candidate of each pick.
    """
    (k, size), count, device = places.shape, len(matrix), matrix.device
    programs = triton.next_power_of_2(size)
    rows = triton.next_power_of_2(count)
    nearest = matrix.max().expand(count).clone()
    picks = torch.empty(k, dtype=torch.int32, device=device)
    picked_gains = torch.empty(k, dtype=torch.float64, device=device)
    slots = torch.empty(2, 2 * programs, dtype=torch.int32, device=device)
    _stochastic_kept[(programs,)](
        matrix, nearest, places.to(device, torch.int32),
        torch.arange(rows, dtype=torch.int32, device=device).repeat(programs),
        torch.empty(2 * programs, dtype=torch.float64, device=device), slots[0], slots[1],
        torch.zeros(1, dtype=torch.int32, device=device),
        picks, picked_gains, count, k, size,
        ROWS=rows, PROGRAMS=programs, NOBODY=1 << 30, num_warps=8,
    )  # fmt: skip
    return picks.long(), picked_gains, nearest
