"""DERTS: train on a weighted subset of a pool whose gradient stands for the whole pool's."""

from __future__ import annotations

import torch
from torch import Tensor

from derts.config import StrategyConfig
from derts.kernels import usable_on
from derts.selection.choice import Candidates, Picked
from derts.selection.confusion import pick_confused
from derts.selection.difficulty import pick_by_loss
from derts.selection.facility_location import select
from derts.selection.rounds import PoolTasks
from derts.selection.two_rounds import select_two_rounds
from derts.selection.weights import selection_weights
from derts.tasks.randomness import generator
from derts.threads import one_thread

# without the kernel a GPU waits for the launches of each pick: 0.2 s for 960 of 3200
QUICKER_ON_CPU = 4096
IN_ONE_PROCESS = 23_170  # more, and the distances between all pairs exceed 2 GiB
LOOKED_AT = 4096  # rows that say how even a pool is
AT_ONCE = 1 << 24  # distances


def derts_tasks(config: StrategyConfig) -> PoolTasks:
    """Drop what looks noisy, select (by facility location or another engine), weigh."""
    return PoolTasks(config, pick_facilities)


def pick_facilities(candidates: Candidates) -> Picked:
    """The candidates whose estimated gradients stand for all of theirs."""
    config, count = candidates.config, candidates.count
    random = generator(candidates.seed)
    if config.engine == "uniform":
        chosen = torch.randperm(len(candidates.indices), generator=random)[:count]
        return Picked(candidates.indices[chosen], torch.ones(count))
    if config.engine == "hardest":
        return pick_by_loss(candidates, hardest=True)
    if config.engine == "confused":
        return pick_confused(candidates)
    rows = candidates.gradients()
    if len(rows) <= QUICKER_ON_CPU and not (usable_on(rows.device) and config.engine == "greedy"):
        rows = rows.cpu()
    number = int(torch.randint(2**31, (1,), generator=random))
    if len(rows) > IN_ONE_PROCESS and not candidates.group.alone:
        found = select_two_rounds(rows, count, seed=number, group=candidates.group)
    else:
        found = select(rows, count, engine=config.engine, epsilon=config.epsilon, seed=number)
    left = None
    if config.selects == "where-it-pays":
        left = left_over_chance(rows, found.indices, random)
    rows = rows.cpu()
    with one_thread():
        weights = selection_weights(
            config.weights, rows, found.indices, found.weights, cap=config.weight_cap or None
        )
    chosen = candidates.indices[found.indices]
    return Picked(chosen, weights.cpu().float(), found.objective, left)


def left_over_chance(rows: Tensor, chosen: Tensor, random: torch.Generator) -> float:
    """Σ of distances from rows [N, d] to the nearest chosen one, over that to as many random ones.

    At most 1 or so: near it, the choice stands for the rows no better than chance does. Of many
    rows the first are looked at.

    >>> rows = torch.tensor([[0.0], [0.0], [0.0], [0.0], [1.0]])
    >>> left_over_chance(rows, torch.tensor([0, 4]), torch.Generator().manual_seed(1))
    0.0
    """
    by_chance = torch.randperm(len(rows), generator=random)[: len(chosen)]
    ours, theirs = (_left(rows, which.to(rows.device)) for which in (chosen, by_chance))
    return float(ours / theirs) if float(theirs) > 0 else 1.0


def _left(rows: Tensor, chosen: Tensor) -> Tensor:
    facilities = rows[chosen].float()
    parts = rows[:LOOKED_AT].float().split(max(1, AT_ONCE // len(chosen)))
    exactly = "donot_use_mm_for_euclid_dist"  # rows that are equal are at distance 0
    sums = [torch.cdist(part, facilities, compute_mode=exactly).amin(1).sum() for part in parts]
    return torch.stack(sums).sum()
