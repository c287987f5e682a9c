"""The smallest run that goes through everything: tests change of it what they are about."""

from dataclasses import replace
from typing import Any

from derts.config import (
    EvaluationConfig,
    LearnerConfig,
    ModelConfig,
    StrategyConfig,
    TaskConfig,
    TrainConfig,
)
from derts.data.table import Table
from derts.learners import AnyLearner, build_learner

TINY = TrainConfig(
    data="glyphs-60x12",
    tasks=TaskConfig(shot=1, query=2),
    model=ModelConfig(width=4),
    strategy=StrategyConfig(warmup=2, pool=12, ratio=0.5),
    evaluation=EvaluationConfig(tasks=20, query=3),
    updates=12,
    meta_batch=2,
)

# the same as words of the command line
TINY_WORDS = [
    "--data", "glyphs-60x12", "--tasks.shot", "1", "--tasks.query", "2", "--model.width", "4",
    "--strategy.warmup", "2", "--strategy.pool", "12", "--strategy.ratio", "0.5",
    "--evaluation.tasks", "20", "--evaluation.query", "3", "--updates", "12", "--meta-batch", "2",
    "--quiet",
]  # fmt: skip

# a run that learns something on photos in seconds: each test says how many classes and filters
LEARNING_WORDS = [
    "--tasks.shot", "3", "--tasks.query", "4", "--meta-batch", "4", "--evaluation.tasks", "10",
    "--evaluation.query", "4", "--learner.distance-divisor", "4", "--quiet",
]  # fmt: skip


def tiny_learner(name: str, images: Table) -> AnyLearner:
    """A learner of three classes on a network of four filters."""
    config = LearnerConfig(name)  # type: ignore[arg-type]
    return build_learner(config, ModelConfig(width=4), way=3, item_shape=images.item_shape)


def tiny(**changes: Any) -> TrainConfig:
    """TINY with changes; a dict changes single fields of a group.

    >>> tiny(updates=3, strategy={"name": "derts"}).strategy.warmup
    2
    """
    for name, value in changes.items():
        if isinstance(value, dict):
            changes[name] = replace(getattr(TINY, name), **value)
    return replace(TINY, **changes)
