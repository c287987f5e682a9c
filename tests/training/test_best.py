"""Runs that are judged by the weights that were best on validation classes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from derts.comparison import compare
from derts.config import (
    EvaluationConfig,
    ModelConfig,
    OptimiserConfig,
    StrategyConfig,
    TaskConfig,
    TrainConfig,
)
from derts.data import ImageTable
from derts.errors import DertsError
from derts.predict import load_model
from derts.training import Trainer, train
from derts.training.checkpoint import load_checkpoint, save_checkpoint
from derts.training.run import open_trainer
from derts.training.run_folder import Run

Tables = dict[str, ImageTable]

# a rate at which training soon falls apart, so that the last weights are not the best
BEST = TrainConfig(
    tasks=TaskConfig(shot=2, query=3),
    model=ModelConfig(width=4),
    optimiser=OptimiserConfig(lr=0.3, schedule="constant"),
    strategy=StrategyConfig(warmup=2, pool=8),
    evaluation=EvaluationConfig(tasks=30, query=5, weights="best"),
    updates=11,
    meta_batch=2,
    validate_every=3,
    checkpoint_every=4,
)


def test_a_run_is_judged_by_the_weights_that_validated_best(
    tmp_path: Path, letters: Tables
) -> None:
    result = train(BEST, tmp_path / "run", tables=letters, quiet=True)
    events = Run.open(tmp_path / "run").events()
    seen = {e["update"]: e["accuracy"] for e in events if e["event"] == "validation"}
    assert list(seen) == [3, 6, 9, 11]
    best = max(seen, key=lambda update: seen[update])
    assert best < BEST.updates
    assert (result["weights_of_update"], result["updates"]) == (best, BEST.updates)
    again = Trainer(BEST, letters)
    again.train(best)
    assert list(again.evaluate("test").accuracies) == result["accuracies"]
    for learner in (
        open_trainer(tmp_path / "run", letters).learner,
        load_model(tmp_path / "run").learner,
    ):
        for name, value in again.learner.state_dict().items():
            assert torch.equal(learner.state_dict()[name], value)


@pytest.mark.parametrize("strategy", ["random", "derts"])
def test_judging_disturbs_nothing_and_survives_a_checkpoint(
    strategy: str, tmp_path: Path, letters: Tables
) -> None:
    config = replace(BEST, strategy=replace(BEST.strategy, name=strategy))  # type: ignore[arg-type]
    first = Trainer(config, letters)
    first.train(3)
    first.validate()
    first.train(7)
    path = save_checkpoint(tmp_path, first.update, first.state_dict())
    before = {name: value.clone() for name, value in first.learner.state_dict().items()}
    judged = first.judge("test").accuracies
    assert judged != first.evaluate("test").accuracies
    for name, value in first.learner.state_dict().items():
        assert torch.equal(value, before[name])
    second = Trainer(config, letters)
    second.load_state_dict(load_checkpoint(path))
    assert second.judge("test").accuracies == judged
    first.train()
    second.train()
    for name, value in first.learner.state_dict().items():
        assert torch.equal(value, second.learner.state_dict()[name])


def test_weights_of_the_warm_up_do_not_count(letters: Tables) -> None:
    trainer = Trainer(replace(BEST, strategy=replace(BEST.strategy, warmup=6)), letters)
    for update, counts in ((3, False), (6, False), (9, True)):
        trainer.train(update)
        trainer.validate()
        assert (trainer.best is not None) == counts
    everything = Trainer(replace(BEST, strategy=replace(BEST.strategy, warmup=50)), letters)
    everything.train()
    everything.validate()
    assert everything.best is not None


def test_a_run_that_selects_is_diagnosed_as_it_stands(tmp_path: Path, letters: Tables) -> None:
    train(BEST, tmp_path / "run", tables=letters, quiet=True)
    trainer = Trainer(BEST, letters)
    trainer.train()
    found = open_trainer(tmp_path / "run", letters, last=True).learner.state_dict()
    for name, value in trainer.learner.state_dict().items():
        assert torch.equal(found[name], value)


def test_a_comparison_judges_by_the_best_weights_too(letters: Tables) -> None:
    variants = {name: {"strategy": {"name": name}} for name in ("random", "derts")}
    results = compare(BEST, variants, [0], letters).results
    for result in results:
        config = replace(BEST, strategy=replace(BEST.strategy, name=result["variant"]))
        alone = train(config, tables=letters, quiet=True)
        for key in ("weights_of_update", "accuracies"):
            assert result[key] == alone[key]


def test_the_last_weights_count_unless_asked_otherwise(letters: Tables) -> None:
    last = replace(BEST, evaluation=replace(BEST.evaluation, weights="last"))
    trainer = Trainer(last, letters)
    trainer.train(3)
    trainer.validate()
    trainer.train()
    assert not trainer.validation_is_due()
    assert trainer.judge("test").accuracies == trainer.evaluate("test").accuracies


def test_best_weights_without_validation_are_refused(tmp_path: Path, letters: Tables) -> None:
    with pytest.raises(DertsError, match=r"--evaluation.weights best needs --validate-every"):
        train(replace(BEST, validate_every=0), tmp_path / "run", tables=letters, quiet=True)
    assert not (tmp_path / "run").exists()
