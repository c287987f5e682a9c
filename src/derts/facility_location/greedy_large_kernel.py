"""Exact greedy facility location without a matrix, for pools of any size, as one kernel.

As `greedy_kernel`, but distances are computed from the points' factors where they are needed, and
the rows that a pick comes nearer to are found by all programs together: each looks at its own rows
and adds those to one list, which all then go through. Two meetings per pick.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _meet(arrivals, target):
    tl.debug_barrier()
    tl.atomic_add(arrivals, 1, sem="acq_rel")
    while tl.atomic_add(arrivals, 0, sem="acquire") < target:
        pass
    tl.debug_barrier()


@triton.jit
def _greedy(
    left, right, gains, nearest, best_gain, best_index, arrivals, totals,
    changed, lower, upper, picks, picked_gains, count, k, inner,
    ROUNDER: tl.constexpr, OWN: tl.constexpr, PROGRAMS: tl.constexpr, CHUNK: tl.constexpr,
    NOBODY: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    own = program * OWN + tl.arange(0, OWN)
    mine = own < count
    gain = tl.load(gains + own, mask=mine, other=float("-inf"))
    limit = tl.load(nearest + own, mask=mine, other=-1.0)
    for position in range(k):
        top = tl.max(gain, 0)
        side = (position % 2) * PROGRAMS  # two sets of slots in turn: nobody is two picks ahead
        tl.store(best_gain + side + program, top)
        tl.store(best_index + side + program, tl.min(tl.where(gain == top, own, NOBODY), 0))
        if program == 0:  # the list of two picks ago, which nobody reads any more
            tl.store(totals + (position + 1) % 3, 0)
        _meet(arrivals, (2 * position + 1) * PROGRAMS)
        slots = side + tl.arange(0, PROGRAMS)
        their_gain = tl.load(best_gain + slots, cache_modifier=".cg")
        their_index = tl.load(best_index + slots, cache_modifier=".cg")
        top = tl.max(their_gain, 0)
        pick = tl.min(tl.where(their_gain == top, their_index, NOBODY), 0)
        if program == 0:
            tl.store(picks + position, pick)
            tl.store(picked_gains + position, top)
        gain = tl.where(own == pick, float("-inf"), gain)
        squares = tl.zeros([OWN], tl.float64)
        for term in range(inner):
            theirs = tl.load(left + pick.to(tl.int64) * inner + term)
            squares += theirs * tl.load(right + term * count + own, mask=mine, other=0.0)
        row = (tl.sqrt_rn(squares.to(tl.float32)) + ROUNDER) - ROUNDER
        nearer = mine & (row < limit)
        found = tl.sum(nearer.to(tl.int32), 0)
        begin = tl.atomic_add(totals + position % 3, found, sem="acq_rel")
        place = begin + tl.cumsum(nearer.to(tl.int32), 0) - 1
        tl.store(changed + place, own, mask=nearer)
        tl.store(lower + place, row, mask=nearer)
        tl.store(upper + place, limit, mask=nearer)
        limit = tl.where(nearer, row, limit)
        _meet(arrivals, (2 * position + 2) * PROGRAMS)
        total = tl.load(totals + position % 3, cache_modifier=".cg")
        for start in range(0, total, CHUNK):
            at = start + tl.arange(0, CHUNK)
            some = at < total
            index = tl.load(changed + at, mask=some, other=0, cache_modifier=".cg")
            new = tl.load(lower + at, mask=some, other=0.0, cache_modifier=".cg")
            old = tl.load(upper + at, mask=some, other=0.0, cache_modifier=".cg")
            both = tl.zeros([CHUNK, OWN], tl.float64)
            for term in range(inner):
                theirs = tl.load(left + index.to(tl.int64) * inner + term, mask=some, other=0.0)
                here = tl.load(right + term * count + own, mask=mine, other=0.0)
                both += theirs[:, None] * here[None, :]
            distance = (tl.sqrt_rn(both.to(tl.float32)) + ROUNDER) - ROUNDER
            kept = tl.minimum(tl.maximum(distance, new[:, None]), old[:, None])
            gain -= tl.sum(old.to(tl.float64)[:, None] - kept.to(tl.float64), 0)
    tl.store(nearest + own, limit, mask=mine)


def greedy_large(
    left: Tensor, right: Tensor, rounder: float, sums: Tensor, largest: float, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Factors [N, r] and [r, N] of squared distances, their sums [N] and largest -> greedy picks.

    Returns picks int64 [K], gains float64 [K] and each row's distance to its nearest pick,
    float32 [N], all on the device. Ties go to the lowest index.
    """
    count, device = len(left), left.device
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    programs = 1 << (processors.bit_length() - 1)  # all of them must run at once
    own = max(16, triton.next_power_of_2(triton.cdiv(count, programs)))
    nearest = torch.full((count,), largest, device=device)
    picks = torch.empty(k, dtype=torch.int32, device=device)
    picked_gains = torch.empty(k, dtype=torch.float64, device=device)
    _greedy[(programs,)](
        left, right, count * float(largest) - sums, nearest,
        torch.empty(2 * programs, dtype=torch.float64, device=device),
        torch.empty(2 * programs, dtype=torch.int32, device=device),
        torch.zeros(1, dtype=torch.int32, device=device),
        torch.zeros(3, dtype=torch.int32, device=device),
        torch.empty(count, dtype=torch.int32, device=device),
        torch.empty(count, device=device), torch.empty(count, device=device),
        picks, picked_gains, count, k, left.shape[1],
        ROUNDER=rounder, OWN=own, PROGRAMS=programs, CHUNK=8, NOBODY=1 << 30, num_warps=8,
    )  # fmt: skip
    return picks.long(), picked_gains, nearest
