"""Augmentation: what is drawn, what it does to an image, and that updates alone see it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from derts.config import (
    AugmentConfig,
    LearnerConfig,
)
from derts.data import ImageTable
from derts.errors import DertsError
from derts.tasks import TaskPool, apply_augmentation, with_augmentation
from derts.training import Trainer
from tests.tiny import tiny

Tables = dict[str, ImageTable]

SMALL = tiny(
    augment={"horizontal_flip": True, "translation": 3},
    evaluation={"tasks": 4},
    strategy={"warmup": 1, "pool": 8, "ratio": 0.3},
    updates=6,
)


def some_pool(table: ImageTable, tasks: int = 50) -> TaskPool:
    return TaskPool.sample(table, tasks=tasks, way=3, shot=1, query=2, seed=0)


def test_draws_are_uniform_bounded_and_follow_from_the_seed(letters: Tables) -> None:
    pool = some_pool(letters["train"], 200)
    augmented = with_augmentation(pool, horizontal_flip=True, translation=2, seed=(0, "a", 5))
    drawn = augmented.augmentation
    assert drawn is not None
    assert drawn.shape == (200, 9, 3)
    assert (drawn.amin((0, 1)).tolist(), drawn.amax((0, 1)).tolist()) == ([0, -2, -2], [1, 2, 2])
    together = (drawn + torch.tensor([0, 2, 2])) @ torch.tensor([25, 5, 1])
    assert chisquare(torch.bincount(together.flatten(), minlength=50)).pvalue > 1e-3
    assert with_augmentation(pool, True, 2, (0, "a", 5)) == augmented
    assert with_augmentation(pool, True, 2, (0, "a", 6)) != augmented
    plain = with_augmentation(pool, horizontal_flip=False, translation=0, seed=0).augmentation
    assert plain is not None
    assert not plain.any()


def test_an_image_is_moved_over_its_reflection_then_flipped() -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (40, 7, 9, 3), dtype=np.uint8)
    drawn = np.column_stack((random.integers(0, 2, 40), random.integers(-3, 4, (40, 2))))
    found = apply_augmentation(torch.from_numpy(images)[None], torch.from_numpy(drawn)[None])[
        0
    ].numpy()
    for image, (flip, down, right), result in zip(images, drawn, found, strict=True):
        wide = np.pad(image[:, ::-1] if flip else image, ((3, 3), (3, 3), (0, 0)), "reflect")
        assert np.array_equal(result, wide[3 - down : 10 - down, 3 - right : 12 - right])


def test_an_image_may_be_moved_by_more_than_its_size() -> None:
    line = torch.arange(4).reshape(1, 1, 4, 1)
    for moved in range(-20, 21):
        found = apply_augmentation(line, torch.tensor([[0, moved, moved]])).flatten().tolist()
        to_and_fro = [0, 1, 2, 3, 2, 1]
        assert found == [to_and_fro[(place - moved) % 6] for place in range(4)]


def test_a_pool_carries_augmentation_but_files_do_not(letters: Tables, tmp_path: Path) -> None:
    pool = some_pool(letters["train"])
    augmented = with_augmentation(pool, True, 2, 0)
    augmented = replace(augmented, trust=torch.rand(len(pool), pool.support.shape[1] * 2))
    assert augmented.augmentation is not None
    part = augmented[3:5]
    assert part.augmentation is not None
    assert torch.equal(part.augmentation, augmented.augmentation[3:5])
    augmented.save(tmp_path / "pool")
    assert TaskPool.load(tmp_path / "pool") == pool


@pytest.mark.parametrize("name", ["protonet", "anil", "maml"])
def test_the_loss_of_an_update_is_that_of_the_images_it_sees(name: str, letters: Tables) -> None:
    config = replace(SMALL, learner=LearnerConfig(name))  # type: ignore[arg-type]
    trainer = Trainer(config, letters)
    table, pool = trainer.images, trainer.draw(2, "batch", 0)
    pool = with_augmentation(pool, True, 3, 1)
    indices = torch.cat((pool.support, pool.query), 1)
    assert pool.augmentation is not None
    shown = apply_augmentation(table.gather(indices), pool.augmentation).flatten(0, 1)
    made = ImageTable(shown, torch.zeros(len(shown), dtype=torch.long), ("any",))
    places = torch.arange(len(shown)).reshape(2, -1)
    shots = pool.support.shape[1]
    plain = replace(pool, support=places[:, :shots], query=places[:, shots:], augmentation=None)
    trainer.learner.train()
    expected = trainer.learner.outer_loss(made, plain).losses
    assert torch.equal(trainer.learner.outer_loss(table, pool).losses, expected)
    assert not torch.equal(
        trainer.learner.outer_loss(table, replace(pool, augmentation=None)).losses, expected
    )


@pytest.mark.parametrize("strategy", ["random", "derts", "us", "ats"])
def test_training_resumes_to_the_bit_and_differs_from_that_without(
    strategy: str, letters: Tables
) -> None:
    chosen = replace(SMALL.strategy, name=strategy)  # type: ignore[arg-type]
    config = replace(SMALL, strategy=chosen, learner=LearnerConfig("anil"))
    whole, first, second = (Trainer(config, letters) for _ in range(3))
    whole.train()
    first.train(until=3)
    second.load_state_dict(first.state_dict())
    second.train()
    plain = Trainer(replace(config, augment=AugmentConfig()), letters)
    plain.train()
    weights = [torch.cat([p.detach().flatten() for p in trainer.learner.parameters()])
               for trainer in (whole, second, plain)]  # fmt: skip
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert whole.evaluate("val").accuracies == second.evaluate("val").accuracies


def test_what_cannot_be_is_refused_by_name(letters: Tables) -> None:
    with pytest.raises(
        DertsError, match=r"--augment.translation is 15 but images are 28 .* at most 14"
    ):
        Trainer(replace(SMALL, augment=AugmentConfig(translation=15)), letters)
    with pytest.raises(DertsError, match=r"--augment\.translation is -1"):
        replace(SMALL, augment=AugmentConfig(translation=-1))
