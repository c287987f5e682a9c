"""Exact greedy facility location as one kernel that stays on the GPU from first to last pick.

Each program owns some candidates and their gains. For every pick the programs publish their best
candidate, wait for each other, and then all know the winner; each finds the rows whose nearest
pick it becomes, and visits those rows' distances to its own candidates. Distances are multiples of
one quantum, so float64 sums are exact and the picks are those of the CPU's engine.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _greedy(
    matrix, nearest, gains, best_gain, best_index, arrivals, changed, lower, upper,
    picks, picked_gains, count, k,
    ROWS: tl.constexpr, OWN: tl.constexpr, PROGRAMS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    everyone = tl.arange(0, ROWS)
    own = program * OWN + tl.arange(0, OWN)
    gain = tl.load(gains + own, mask=own < count, other=float("-inf"))
    limit = tl.load(nearest + everyone, mask=everyone < count, other=-1.0)
    slot = tl.arange(0, PROGRAMS)
    scratch = program * ROWS
    for position in range(k):
        top = tl.max(gain, 0)
        first = tl.min(tl.where(gain == top, own, count), 0)
        # two sets of slots in turn: nobody can be two picks ahead
        side = (position % 2) * PROGRAMS
        tl.store(best_gain + side + program, top)
        tl.store(best_index + side + program, first)
        tl.debug_barrier()
        tl.atomic_add(arrivals, 1, sem="acq_rel")
        target = (position + 1) * PROGRAMS
        while tl.atomic_add(arrivals, 0, sem="acquire") < target:
            pass
        tl.debug_barrier()
        their_gain = tl.load(best_gain + side + slot, cache_modifier=".cg")
        their_index = tl.load(best_index + side + slot, cache_modifier=".cg")
        top = tl.max(their_gain, 0)
        pick = tl.min(tl.where(their_gain == top, their_index, count), 0)
        if program == 0:
            tl.store(picks + position, pick)
            tl.store(picked_gains + position, top)
        gain = tl.where(own == pick, float("-inf"), gain)
        row = tl.load(
            matrix + pick.to(tl.int64) * count + everyone, mask=everyone < count, other=0.0
        )
        nearer = row < limit
        place = tl.cumsum(nearer.to(tl.int32), 0) - 1
        total = tl.sum(nearer.to(tl.int32), 0)
        tl.store(changed + scratch + place, everyone, mask=nearer)
        tl.store(lower + scratch + place, row, mask=nearer)
        tl.store(upper + scratch + place, limit, mask=nearer)
        limit = tl.where(nearer, row, limit)
        tl.debug_barrier()
        for start in range(0, total, CHUNK):
            at = start + tl.arange(0, CHUNK)
            some = at < total
            index = tl.load(changed + scratch + at, mask=some, other=0)
            new = tl.load(lower + scratch + at, mask=some, other=0.0)
            old = tl.load(upper + scratch + at, mask=some, other=0.0)
            distance = tl.load(
                matrix + index.to(tl.int64)[:, None] * count + own[None, :],
                mask=some[:, None] & (own < count)[None, :],
                other=float("inf"),
            )
            kept = tl.minimum(tl.maximum(distance, new[:, None]), old[:, None])
            lost = old.to(tl.float64)[:, None] - kept.to(tl.float64)
            gain -= tl.sum(lost, 0)
        tl.debug_barrier()
    if program == 0:
        tl.store(nearest + everyone, limit, mask=everyone < count)


def greedy(matrix: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Distances float32 [N, N] that are multiples of one quantum -> the exact greedy picks.

    Returns picks int64 [K], gains float64 [K] and each row's distance to its nearest pick,
    float32 [N], all on the device. Ties go to the lowest index.
    """
    count = len(matrix)
    device = matrix.device
    largest = matrix.max()
    gains = count * largest.double() - matrix.sum(1, dtype=torch.float64)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    programs = 1 << (processors.bit_length() - 1)  # all of them must run at once
    own = max(16, triton.next_power_of_2(triton.cdiv(count, programs)))
    rows = triton.next_power_of_2(count)
    nearest = largest.expand(count).clone()
    picks = torch.empty(k, dtype=torch.int32, device=device)
    picked_gains = torch.empty(k, dtype=torch.float64, device=device)
    _greedy[(programs,)](
        matrix, nearest, gains,
        torch.empty(2 * programs, dtype=torch.float64, device=device),
        torch.empty(2 * programs, dtype=torch.int32, device=device),
        torch.zeros(1, dtype=torch.int32, device=device),
        torch.empty(programs * rows, dtype=torch.int32, device=device),
        torch.empty(programs * rows, device=device), torch.empty(programs * rows, device=device),
        picks, picked_gains, count, k,
        ROWS=rows, OWN=own, PROGRAMS=programs, CHUNK=64, num_warps=8,
    )  # fmt: skip
    return picks.long(), picked_gains, nearest
