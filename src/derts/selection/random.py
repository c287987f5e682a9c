"""Random: uniform tasks, the baseline of every comparison; as they are, or relabelled by votes."""

from __future__ import annotations

import torch

from derts.labels.votes import majority_vote
from derts.selection.choice import Choice, DrawnPool, Seed, shuffled_batches
from derts.selection.rounds import PoolStrategy, draw_pool
from derts.selection.strategy import Context, MetaBatch, Strategy, draw_one
from derts.tasks.pool import TaskPool


class RandomTasks(Strategy):
    """Each update trains on fresh, uniformly drawn tasks."""

    def next_batch(self, context: Context) -> MetaBatch:
        return context.random_batch(context.update)

    def ahead(self, context: Context) -> TaskPool:
        return context.random_batch(context.update + 1).pool


class RandomVotes(PoolStrategy):
    """Random tasks of a pool whose labels are those of most of its tasks: no estimate, no choice.

    As many of them as `derts` would select, so that both see as many pools.
    """

    def check(self, context: Context) -> None:
        super().check(context)
        majority_vote(draw_one(context, 0))  # refuses tasks that do not say their classes

    def draw(self, context: Context, number: int) -> DrawnPool:
        given = draw_pool(context, self.config, number)
        votes = majority_vote(given)
        relabelled = None if votes.note else votes.relabelled
        return DrawnPool(votes.pool, given, None, relabelled, votes.note)

    def choose(self, context: Context, drawn: DrawnPool, seed: Seed) -> Choice:
        size = len(drawn.pool)
        chosen = torch.arange(max(1, round(self.config.ratio * size)))
        weights = torch.zeros(size).index_fill_(0, chosen, 1.0)
        batches = shuffled_batches(chosen, context.meta_batch, seed)
        return Choice(batches, weights, chosen, "uniform")
