"""DERTS: train on a weighted subset of a pool whose gradient stands for the whole pool's."""

from __future__ import annotations

import torch

from derts.config import StrategyConfig
from derts.facility_location import select, select_two_rounds
from derts.hardware import one_thread
from derts.kernels import usable_on
from derts.selection.by_loss import pick_by_loss
from derts.selection.choice import Candidates, Picked
from derts.selection.confusion import pick_confused
from derts.selection.rounds import PoolTasks
from derts.selection.weights import selection_weights
from derts.tasks.randomness import generator

# without the kernel a GPU waits for the launches of each pick: 0.2 s for 960 of 3200
QUICKER_ON_CPU = 4096
IN_ONE_PROCESS = 23_170  # more, and the distances between all pairs exceed 2 GiB


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
    rows = rows.cpu()
    with one_thread():
        weights = selection_weights(
            config.weights, rows, found.indices, found.weights, cap=config.weight_cap or None
        )
    chosen = candidates.indices[found.indices]
    return Picked(chosen, weights.cpu().float(), found.objective)
