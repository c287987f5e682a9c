"""Random: uniform tasks, the baseline of every comparison."""

from __future__ import annotations

from derts.selection.strategy import Context, MetaBatch, Strategy
from derts.tasks.pool import TaskPool


class RandomTasks(Strategy):
    """Each update trains on fresh, uniformly drawn tasks."""

    def next_batch(self, context: Context) -> MetaBatch:
        return MetaBatch(context.draw(context.meta_batch, "batch", context.update))

    def ahead(self, context: Context) -> TaskPool:
        return context.draw(context.meta_batch, "batch", context.update + 1)
