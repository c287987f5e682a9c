"""DERTS: train on a weighted subset of a pool whose gradient stands for the whole pool's."""

from __future__ import annotations

import torch

from derts.config import StrategyConfig
from derts.gradients import PoolEstimate
from derts.selection.choice import Picked, Seed
from derts.selection.facility_location import select
from derts.selection.rounds import PoolTasks
from derts.selection.weights import selection_weights
from derts.tasks.randomness import generator

# a GPU waits for the launches of each pick: 0.2 s for 960 of 3200, where two CPU cores take 0.08 s
QUICKER_ON_CPU = 4096


class DertsTasks(PoolTasks):
    """Facility location over the estimated gradients (or a uniform choice), then weights."""

    def pick(
        self,
        config: StrategyConfig,
        estimate: PoolEstimate,
        candidates: torch.Tensor,
        count: int,
        seed: Seed,
    ) -> Picked:
        return pick_facilities(config, estimate, candidates, count, seed)


def pick_facilities(
    config: StrategyConfig,
    estimate: PoolEstimate,
    candidates: torch.Tensor,
    count: int,
    seed: Seed,
) -> Picked:
    """The candidates that stand for all candidates; see `choice.Pick`."""
    random = generator(seed)
    if config.engine == "uniform":
        chosen = torch.randperm(len(candidates), generator=random)[:count]
        return Picked(candidates[chosen], torch.ones(count))
    gradients = estimate.gradients[config.estimate]
    rows = gradients[candidates.to(gradients.device)]
    if len(rows) <= QUICKER_ON_CPU:
        rows = rows.cpu()
    number = int(torch.randint(2**31, (1,), generator=random))
    found = select(rows, count, engine=config.engine, epsilon=config.epsilon, seed=number)
    weights = selection_weights(
        config.weights, rows, found.indices, found.weights, cap=config.weight_cap or None
    )
    return Picked(candidates[found.indices], weights.cpu().float(), found.objective)
