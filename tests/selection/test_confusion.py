"""Confused pairs: scores that a plain loop gives as well, and tasks that have them."""

from dataclasses import replace

import pytest
import torch

from derts.config import LearnerConfig, ModelConfig, StrategyConfig, TaskConfig, TrainConfig
from derts.data import ImageTable
from derts.errors import DertsError
from derts.gradients import estimate_pool
from derts.learners import build_learner
from derts.selection import Context, build_strategy
from derts.selection.confusion import confusion
from derts.tasks import TaskPool
from derts.training import Trainer

Tables = dict[str, ImageTable]


def plainly(profiles: torch.Tensor, classes: torch.Tensor) -> list[float]:
    """Pair by pair."""
    way = classes.shape[1]
    masses: dict[frozenset[int], list[float]] = {}
    for profile, task in zip(profiles.tolist(), classes.tolist(), strict=True):
        for i in range(way):
            for j in range(way):
                if i != j:
                    masses.setdefault(frozenset((task[i], task[j])), []).append(
                        profile[way * i + j]
                    )
    rates = {pair: sum(found) / len(found) for pair, found in masses.items()}
    return [
        sum(rates[frozenset((a, b))] for a in task for b in task if a != b) / (way * (way - 1))
        for task in classes.tolist()
    ]


def test_scores_are_those_of_a_plain_loop() -> None:
    random = torch.Generator().manual_seed(0)
    classes = torch.stack([torch.randperm(6, generator=random)[:3] for _ in range(40)]) * 5
    profiles = torch.rand(40, 9, generator=random)
    assert confusion(profiles, classes).tolist() == pytest.approx(plainly(profiles, classes))


def test_a_task_that_overflowed_spoils_no_other() -> None:
    classes = torch.tensor([[0, 1], [0, 1], [1, 2]])
    profiles = torch.tensor([[0.0, 0.4, 0.2, 0.0], [0.0, float("nan"), 0.2, 0.0], [0.0] * 4])
    assert confusion(profiles, classes).tolist() == pytest.approx([0.3, 0.3, 0.0])


@pytest.mark.parametrize("learner", ["anil", "protonet", "maml"])
def test_the_engine_trains_on_the_most_confused_of_a_pool(learner: str, letters: Tables) -> None:
    config = TrainConfig(
        tasks=TaskConfig(shot=2, query=3),
        model=ModelConfig(width=8),
        learner=LearnerConfig(learner),  # type: ignore[arg-type]
        strategy=StrategyConfig("derts", warmup=2, pool=30, ratio=0.4, engine="confused"),
        updates=6,  # the warm-up and one round
        meta_batch=3,
    )
    config = replace(config, strategy=replace(config.strategy, drop_score="none"))
    trainer = Trainer(config, letters)
    trainer.train(2)
    pool = trainer.draw(30, "pool", 0, config.strategy.images_of(len(trainer.images)))
    estimate = estimate_pool(trainer.learner, trainer.images, pool, ("error-profile",))
    assert pool.classes is not None
    scores = confusion(estimate.gradients["error-profile"], pool.classes)
    trainer.train()
    trained = torch.cat(trainer.strategy.batches)  # type: ignore[attr-defined]
    assert sorted(trained.tolist()) == sorted(scores.argsort(descending=True)[:12].tolist())


def test_pools_that_know_no_classes_are_refused(letters: Tables) -> None:
    table = letters["train"]

    def draw(tasks: int, purpose: str, number: int, images: int = 0) -> TaskPool:
        pool = TaskPool.sample(table, tasks=tasks, way=3, shot=1, query=2, seed=number)
        return replace(pool, classes=None)

    learner = build_learner(
        LearnerConfig("anil"), ModelConfig(width=4), way=3, image_shape=table.image_shape
    )
    config = StrategyConfig("derts", engine="confused", doubt="none")
    context = Context(learner, table, draw, 2)
    with pytest.raises(DertsError, match="engine confused needs to know which classes"):
        build_strategy(config).check(context)
