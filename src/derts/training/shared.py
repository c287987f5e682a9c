"""One update's gradient, its tasks shared among the processes that train together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from derts.data.table import ImageTable
from derts.distributed import Group
from derts.learners.base import Learner, Outcome
from derts.models.batch_norm import set_total
from derts.tasks.pool import TaskPool

Weigh = Callable[[torch.Tensor], torch.Tensor | None]


def outer_gradient(
    learner: Learner[Any], images: ImageTable, pool: TaskPool, weigh: Weigh, group: Group
) -> Outcome:
    """Fill the parameters' gradients with those of a meta-batch of T tasks, and tell about it.

    `weigh` gets the losses [T] of all tasks, wherever they were computed. The outcome is that of
    the whole meta-batch; its `loss` is this process's part of it.
    """
    if group.alone:
        outcome = learner.outer_loss(images, pool, weigh)
        outcome.loss.backward()
        return outcome
    count = len(pool)
    part, share = group.part(count), group.share(count)
    losses = torch.zeros(0)
    if learner.embeds and not learner.per_task_statistics:
        # where every process has all tasks, each has all their statistics too
        set_total(learner.backbone, group.total if group.shares(count) else None)

    def weigh_mine(mine: torch.Tensor) -> torch.Tensor:
        nonlocal losses
        losses = group.gather(mine, count)
        weights = weigh(losses)
        return share * (torch.ones_like(mine) if weights is None else weights[part].to(mine))

    outcome = learner.outer_loss(images, pool[part], weigh_mine)
    outcome.loss.backward()
    group.sum_gradients(learner.parameters())
    if learner.per_task_statistics:
        _average_statistics(learner, group, share)
    return Outcome(outcome.loss.detach(), losses, group.gather(outcome.accuracies, count))


def _average_statistics(learner: Learner[Any], group: Group, share: float) -> None:
    """Running statistics move by the mean over tasks: the mean of where each process put them."""
    buffers = [value for value in learner.buffers() if value.is_floating_point()]
    for value in buffers:
        value.mul_(share)
    group.sum_tensors(buffers)
