"""Hand-written GPU kernels (Triton): distances between all pairs, and two of exact greedy.

Distances are multiples of one quantum, so float64 sums are exact and the picks are the CPU's.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _pair_distances(
    points, others, out, rows, columns, inner,
    ROUNDER: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * HIGH + tl.arange(0, HIGH)
    column = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    squares = tl.zeros([HIGH, WIDE], tl.float64)
    for term in range(inner):
        first = tl.load(points + row * inner + term, mask=row < rows, other=0.0)
        second = tl.load(others + column * inner + term, mask=column < columns, other=0.0)
        apart = first[:, None] - second[None, :]
        squares += apart * apart
    # the nearest float32 to the root, as everywhere
    roots = tl.sqrt_rn(squares.to(tl.float32))
    rounded = (roots + ROUNDER) - ROUNDER
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(out + at, rounded, mask=(row < rows)[:, None] & (column < columns)[None, :])


def pair_distances(points: Tensor, others: Tensor, rounder: float) -> Tensor:
    """From points [m, d] to points [n, d], both float64 on the grid: float32 [m, n], rounded.

    Squares of differences and their sums are exact, as the factors' products are.
    """
    rows, columns = len(points), len(others)
    out = torch.empty(rows, columns, device=points.device)
    _pair_distances[(triton.cdiv(rows, 32), triton.cdiv(columns, 128))](
        points, others, out, rows, columns, points.shape[1],
        ROUNDER=rounder, HIGH=32, WIDE=128, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def meet(arrivals, target):
    tl.debug_barrier()
    tl.atomic_add(arrivals, 1, sem="acq_rel")
    while tl.atomic_add(arrivals, 0, sem="acquire") < target:
        pass
    tl.debug_barrier()


@triton.jit
def _greedy_kept(
    matrix, nearest, gains, best_gain, best_index, arrivals, changed, lower, upper,
    picks, picked_gains, count, k,
    ROWS: tl.constexpr, OWN: tl.constexpr, PROGRAMS: tl.constexpr, CHUNK: tl.constexpr,
    NOBODY: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    everyone = tl.arange(0, ROWS)
    own = program * OWN + tl.arange(0, OWN)
    gain = tl.load(gains + own, mask=own < count, other=float("-inf"))
    limit = tl.load(nearest + everyone, mask=everyone < count, other=-1.0)
    scratch = program * ROWS
    position, meeting = 0, 0
    while position < k:
        top = tl.max(gain, 0)
        first = tl.min(tl.where(gain == top, own, NOBODY), 0)
        others = tl.where(own == first, float("-inf"), gain)
        next_top = tl.max(others, 0)
        second = tl.min(tl.where(others == next_top, own, NOBODY), 0)
        # two sets of slots in turn: nobody can be two meetings ahead
        side = (meeting % 2) * 2 * PROGRAMS + program
        tl.store(best_gain + side, top)
        tl.store(best_index + side, first)
        tl.store(best_gain + side + PROGRAMS, next_top)
        tl.store(best_index + side + PROGRAMS, second)
        meeting += 1
        meet(arrivals, meeting * PROGRAMS)
        slots = ((meeting - 1) % 2) * 2 * PROGRAMS + tl.arange(0, 2 * PROGRAMS)
        their_gain = tl.load(best_gain + slots, cache_modifier=".cg")
        their_index = tl.load(best_index + slots, cache_modifier=".cg")
        top = tl.max(their_gain, 0)
        pick = tl.min(tl.where(their_gain == top, their_index, NOBODY), 0)
        their_gain = tl.where(their_index == pick, float("-inf"), their_gain)
        next_top = tl.max(their_gain, 0)
        follower = tl.min(tl.where(their_gain == next_top, their_index, NOBODY), 0)
        there = tl.where(next_top > float("-inf"), tl.where(position + 1 < k, count, 0), 0)
        row = tl.load(
            matrix + pick.to(tl.int64) * count + everyone, mask=everyone < count, other=0.0
        )
        next_row = tl.load(
            matrix + follower.to(tl.int64) * count + everyone,
            mask=everyone < there,
            other=float("inf"),
        )
        # the runner-up keeps its gain, and comes next, if no row is nearer to both
        both = tl.max(((row < limit) & (next_row < limit)).to(tl.int32), 0)
        two = tl.where(both == 0, tl.where(there > 0, 1, 0), 0)
        if program == 0:
            tl.store(picks + position, pick)
            tl.store(picked_gains + position, top)
            tl.store(picks + position + 1, follower, mask=two > 0)
            tl.store(picked_gains + position + 1, next_top, mask=two > 0)
        follower = tl.where(two > 0, follower, pick)
        gain = tl.where((own == pick) | (own == follower), float("-inf"), gain)
        row = tl.where(two > 0, tl.minimum(row, next_row), row)
        position += 1 + two
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


def greedy_kept(matrix: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Distances float32 [N, N] -> the exact greedy picks, by one kernel that stays on the GPU.

    Each program owns some candidates and their gains. At each meeting the programs publish their
    two best candidates; then all know the winner, and whether the runner-up is sure to win next.
    Each finds the rows whose nearest pick they become, and visits those rows' distances to its own
    candidates.

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
    _greedy_kept[(programs,)](
        matrix, nearest, gains,
        torch.empty(4 * programs, dtype=torch.float64, device=device),
        torch.empty(4 * programs, dtype=torch.int32, device=device),
        torch.zeros(1, dtype=torch.int32, device=device),
        torch.empty(programs * rows, dtype=torch.int32, device=device),
        torch.empty(programs * rows, device=device), torch.empty(programs * rows, device=device),
        picks, picked_gains, count, k,
        ROWS=rows, OWN=own, PROGRAMS=programs, CHUNK=64, NOBODY=1 << 30, num_warps=8,
    )  # fmt: skip
    return picks.long(), picked_gains, nearest


@triton.jit
def _greedy_large(
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
        meet(arrivals, (2 * position + 1) * PROGRAMS)
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
        meet(arrivals, (2 * position + 2) * PROGRAMS)
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

    As `greedy_kept`, without a matrix: distances are computed where they are needed, and the rows
    that a pick comes nearer to are found by all programs together. Each looks at its own rows and
    adds those to one list, which all then go through. Two meetings per pick.
    """
    count, device = len(left), left.device
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    programs = 1 << (processors.bit_length() - 1)  # all of them must run at once
    own = max(16, triton.next_power_of_2(triton.cdiv(count, programs)))
    nearest = torch.full((count,), largest, device=device)
    picks = torch.empty(k, dtype=torch.int32, device=device)
    picked_gains = torch.empty(k, dtype=torch.float64, device=device)
    _greedy_large[(programs,)](
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
