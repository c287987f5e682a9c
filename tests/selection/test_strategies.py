"""What every strategy must do, whatever it chooses."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from derts.config import LearnerConfig, ModelConfig, StrategyConfig, TrainConfig
from derts.data import ImageTable
from derts.errors import DertsError
from derts.learners import build_learner
from derts.selection import STRATEGIES, Context, build_strategy
from derts.tasks import TaskPool
from derts.training import Trainer
from derts.training.checkpoint import load_checkpoint, save_checkpoint
from tests.tiny import tiny

Tables = dict[str, ImageTable]

LEARNERS = {
    name: ("anil", "maml") if name == "ats" else ("anil", "maml", "protonet") for name in STRATEGIES
}
PAIRS = [
    pytest.param(strategy, learner, marks=[pytest.mark.slow] if learner == "maml" else [])
    for strategy, names in LEARNERS.items()
    for learner in names
]


def config(strategy: str, learner: str) -> TrainConfig:
    return tiny(
        tasks={"noise": "tasks"},
        strategy={"name": strategy},
        learner={"name": learner, "inner_steps": 1 if learner == "maml" else 3},
        updates=8,
    )


@pytest.mark.parametrize(("strategy", "learner"), PAIRS)
def test_it_trains_and_continues_to_the_bit(
    strategy: str, learner: str, tmp_path: Path, letters: Tables
) -> None:
    settings = config(strategy, learner)
    whole = Trainer(settings, letters)
    whole.train(5)
    path = save_checkpoint(tmp_path, whole.update, whole.state_dict())
    whole.train()
    later = Trainer(settings, letters)
    later.load_state_dict(load_checkpoint(path))
    later.train()
    expected = whole.learner.state_dict()
    for key, value in later.learner.state_dict().items():
        assert torch.equal(value, expected[key]), key
    assert whole.update == 8


@pytest.mark.parametrize(("name", "larger"), [("hardest", True), ("easiest", False)])
def test_hardest_and_easiest_are_by_query_loss(name: str, larger: bool, letters: Tables) -> None:
    events: list[dict[str, object]] = []
    trainer = Trainer(config(name, "protonet"), letters, events.append)
    trainer.train()
    from derts.gradients import estimate_pool

    round_ = next(event for event in events if event["event"] == "round")
    assert round_["kept"] == 6
    pool = trainer.draw(12, "pool", 0)
    fresh = Trainer(config(name, "protonet"), letters)
    fresh.train(2)
    fresh.context.update = 2
    losses = estimate_pool(fresh.learner, fresh.images, pool).losses
    batch = fresh.strategy.next_batch(fresh.context)
    chosen = estimate_pool(fresh.learner, fresh.images, batch.pool).losses
    limit = losses.sort(descending=larger).values[5]
    assert bool(((chosen >= limit - 1e-6) if larger else (chosen <= limit + 1e-6)).all())


def test_a_loop_whose_pools_know_no_classes_is_told_so(letters: Tables) -> None:
    table = letters["train"]

    def draw(tasks: int, purpose: str, number: int, pool_images: int = 0) -> TaskPool:
        pool = TaskPool.sample(table, tasks=tasks, way=3, shot=1, query=2, seed=number)
        return replace(pool, classes=None)

    learner = build_learner(
        LearnerConfig(), ModelConfig(width=4), way=3, item_shape=table.item_shape
    )
    context = Context(learner, table, draw, 2)
    with pytest.raises(DertsError, match=r"--strategy\.no-votes"):
        build_strategy(StrategyConfig("derts", warmup=5)).next_batch(context)
    build_strategy(StrategyConfig("derts", warmup=5, votes=False)).next_batch(context)
