"""Hardest and easiest: the tasks of a pool with the largest or smallest query loss.

Hard tasks may be informative or mislabelled: nothing is dropped here, so that this can be seen.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from derts.config import StrategyConfig
from derts.selection.choice import Candidates, Picked
from derts.selection.rounds import PoolTasks


def hardest_tasks(config: StrategyConfig) -> PoolTasks:
    """Train on the tasks that the model gets most wrong after adaptation, all weights alike."""
    return PoolTasks(_plain(config), partial(pick_by_loss, hardest=True))


def easiest_tasks(config: StrategyConfig) -> PoolTasks:
    """Train on the tasks that the model already solves best."""
    return PoolTasks(_plain(config), partial(pick_by_loss, hardest=False))


def pick_by_loss(candidates: Candidates, hardest: bool) -> Picked:
    """The candidates with the largest or smallest query loss."""
    losses = candidates.estimate.losses.cpu()[candidates.indices]
    order = losses.argsort(descending=hardest, stable=True)[: candidates.count]
    return Picked(candidates.indices[order], torch.ones(candidates.count))


def _plain(config: StrategyConfig) -> StrategyConfig:
    return replace(config, drop_score="none", batching="shuffled", doubt="none")
