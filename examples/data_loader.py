"""A plain DataLoader loop: any strategy says which tasks come next, the loop stays yours.

    python examples/data_loader.py

Trains on glyph tasks, 60% of them mislabelled, in some seconds on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

import derts
from derts.config import StrategyConfig
from derts.selection import Context, MetaBatch, Strategy, build_strategy

WAY, SHOT, QUERY, UPDATES, META_BATCH = 5, 1, 5, 75, 8


class StrategyTasks(IterableDataset[MetaBatch]):
    """The meta-batches of a strategy, one per update.

    The strategy looks at the learner as it is now, so the loader must not run ahead of training:
    leave num_workers at 0.
    """

    def __init__(self, strategy: Strategy, context: Context, updates: int) -> None:
        self.strategy, self.context, self.updates = strategy, context, updates

    def __iter__(self) -> Iterator[MetaBatch]:
        for update in range(self.updates):
            self.context.update, self.context.progress = update, update / self.updates
            yield self.strategy.next_batch(self.context)


def draw(
    table: derts.ImageTable,
    noise: derts.TaskNoise,
    tasks: int,
    purpose: str,
    number: int,
    pool_images: int = 0,
) -> derts.TaskPool:
    """Fresh tasks, the same for the same arguments, of about `pool_images` images (0: any)."""
    seed = (0, purpose, number)
    return derts.TaskPool.sample(
        table, tasks=tasks, way=WAY, shot=SHOT, query=QUERY, seed=seed, noise=noise,
        pool_images=pool_images,
    )  # fmt: skip


def make_loader(learner: derts.Learner, table: derts.ImageTable) -> DataLoader[MetaBatch]:  # type: ignore[type-arg]
    """A DataLoader of meta-batches that DERTS chooses."""
    strategy = build_strategy(StrategyConfig(name="derts", warmup=20, pool=120))
    noise = derts.TaskNoise(fraction=0.6)
    context = Context(learner, table, partial(draw, table, noise), META_BATCH)
    tasks = StrategyTasks(strategy, context, UPDATES)
    return DataLoader(tasks, batch_size=None, collate_fn=as_is)


def as_is(batch: Any) -> Any:
    """Indices are cheap: there is nothing to collate."""
    return batch


def main() -> None:
    tables = derts.glyphs(characters=100, images_per_character=20)
    test = derts.TaskPool.sample(tables["test"], tasks=100, way=WAY, shot=SHOT, query=10, seed=1)
    config = derts.LearnerConfig(distance_divisor=4.0)
    shape = tables["train"].item_shape
    learner = derts.build_learner(config, derts.ModelConfig(width=16), way=WAY, item_shape=shape)
    optimiser = torch.optim.Adam(learner.parameters(), lr=0.004)
    print(f"before: {derts.evaluate(learner, tables['test'], test)}")
    for batch in make_loader(learner, tables["train"]):
        learner.train()
        outcome = learner.outer_loss(tables["train"], batch.pool, batch.weights)
        optimiser.zero_grad()
        outcome.loss.backward()
        optimiser.step()
    print(f"after: {derts.evaluate(learner, tables['test'], test)}")


if __name__ == "__main__":
    main()
