"""Training on rotated classes: four times as many, for every strategy, in reports as well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from derts.config import (
    TrainConfig,
)
from derts.config_file import apply_presets
from derts.data import ImageTable
from derts.report.pool_map import tasks_of_round
from derts.report.read import read_runs
from derts.training import Trainer, train
from tests.tiny import tiny

Tables = dict[str, ImageTable]
CONFIG = tiny(
    data="glyphs-60x15",
    tasks={"rotated": True},
    learner={"distance_divisor": 4.0},
    evaluation={"tasks": 5, "query": 2},
    strategy={"name": "derts", "pool": 20, "ratio": 0.3},
    updates=4,
    meta_batch=4,
)


def test_tasks_are_of_upright_and_rotated_images_of_the_named_classes(letters: Tables) -> None:
    names = letters["train"].class_names[:3]
    config = replace(CONFIG, tasks=replace(CONFIG.tasks, classes=names))
    trainer = Trainer(config, letters)
    pool = trainer.draw(50, "batch", 0)
    assert pool.classes is not None
    assert pool.classes.unique().tolist() == list(range(12))  # of which a task has five
    shown = trainer.images.gather(pool.support[0])[0]
    name, _, turn = trainer.images.class_names[int(pool.classes[0, 0])].partition(", ")
    upright = letters["train"].gather(letters["train"].class_indices([name])[0])
    rotated = torch.rot90(upright, int(turn.removesuffix("°") or 0) // 90, (1, 2))
    assert any(torch.equal(shown, image) for image in rotated)


@pytest.mark.parametrize("name", ["random", "derts", "us"])
def test_strategies_train_on_rotated_classes(name: str, letters: Tables) -> None:
    config = replace(CONFIG, strategy=replace(CONFIG.strategy, name=name))  # type: ignore[arg-type]
    trainer, upright = Trainer(config, letters), Trainer(_upright(config), letters)
    for each in (trainer, upright):
        each.train()
    weights, others = (each.learner.state_dict().values() for each in (trainer, upright))
    assert not all(torch.equal(mine, other) for mine, other in zip(weights, others, strict=True))
    assert trainer.images.class_names[: len(letters["train"].class_names)] == (
        letters["train"].class_names
    )
    assert trainer.split("test") is letters["test"]  # what is judged is upright


def test_a_report_has_the_rotated_tasks_of_a_round(tmp_path: Path) -> None:
    train(CONFIG, out=tmp_path / "run")
    history = read_runs([tmp_path / "run"])[0]
    assert history.newest_round is not None
    found = tasks_of_round(history.config, history.newest_round, {})
    assert not isinstance(found, str)
    images, pool = found
    assert pool.classes is not None
    assert any("°" in images.class_names[int(number)] for number in pool.classes.flatten())


def test_the_preset_rotates_classes() -> None:
    assert _upright(apply_presets(["rotated"])) == apply_presets([])


def _upright(config: TrainConfig) -> TrainConfig:
    assert config.tasks.rotated
    return replace(config, tasks=replace(config.tasks, rotated=False))
