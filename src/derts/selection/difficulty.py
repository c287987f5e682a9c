"""Hardest and easiest: the tasks of a pool with the largest or smallest query loss."""

from __future__ import annotations

from dataclasses import replace

import torch

from derts.config import StrategyConfig
from derts.gradients import PoolEstimate
from derts.selection.choice import Picked, Seed
from derts.selection.rounds import PoolTasks


class HardestTasks(PoolTasks):
    """Train on the tasks that the model gets most wrong after adaptation, all weights alike.

    Hard tasks may be informative or mislabelled: nothing is dropped here, so that this can be
    seen.
    """

    hardest = True

    def __init__(self, config: StrategyConfig) -> None:
        super().__init__(replace(config, drop_score="none", batching="shuffled"))

    def pick(
        self,
        config: StrategyConfig,
        estimate: PoolEstimate,
        candidates: torch.Tensor,
        count: int,
        seed: Seed,
    ) -> Picked:
        order = estimate.losses.cpu()[candidates].argsort(descending=self.hardest, stable=True)
        return Picked(candidates[order[:count]], torch.ones(count))


class EasiestTasks(HardestTasks):
    """Train on the tasks that the model already solves best."""

    hardest = False
