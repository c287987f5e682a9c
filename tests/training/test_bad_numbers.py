"""Losses and gradients that are not finite."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from derts.data import ImageTable
from derts.errors import DertsError
from derts.gradients import PoolEstimate
from derts.learners.base import Learner
from derts.selection import rounds
from derts.tasks import TaskPool
from derts.training import Trainer, resume, train
from derts.training.bad_numbers import GuardedStep
from derts.training.run_folder import Run
from derts.training.step import AdamW
from tests.tiny import tiny

Tables = dict[str, ImageTable]

SMALL = tiny(learner={"name": "anil"}, updates=30, meta_batch=3, checkpoint_every=10)


@pytest.fixture(autouse=True)
def _an_event_of_seven_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("derts.training.trainer.LOG_EVERY", 7)


def spoil(monkeypatch: pytest.MonkeyPatch, bad: set[int], kind: str, task: int = 1) -> None:
    """Let the outer loss, or only its gradient, be not finite in some updates of a Trainer."""
    whole = Learner.forward_tasks
    update = -1

    def forward_tasks(self: Learner[Any], images: ImageTable, pool: TaskPool) -> Any:
        losses, plain, accuracies = whole(self, images, pool)
        if self.training:
            nonlocal update
            update += 1
            if update in bad:
                wrong = torch.zeros_like(losses)
                wrong[task] = math.inf
                # sqrt at 0 has an infinite slope and a finite value
                steep = (losses[task] - losses[task].detach()).abs().sqrt()
                losses = losses + (wrong if kind == "loss" else steep)
                plain = losses.detach()
                for value in self.buffers():
                    if value.is_floating_point():
                        value.data.fill_(math.nan)  # not seen by autograd
        return losses, plain, accuracies

    monkeypatch.setattr(Learner, "forward_tasks", forward_tasks)


def parameters(trainer: Trainer) -> list[torch.Tensor]:
    return [value.clone() for value in trainer.learner.state_dict().values() if value.ndim]


@pytest.mark.parametrize("fused", [False, True], ids=["read", "on-the-device"])
@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_a_bad_update_leaves_model_optimiser_and_statistics_alone(
    kind: str, fused: bool, letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, {3}, kind)
    events: list[dict[str, Any]] = []
    trainer = Trainer(SMALL, letters, events.append)
    if fused:  # what a GPU uses; the masked path must not read the answer
        masked = AdamW(trainer.learner.parameters(), lr=0.005, fused=True)
        trainer.updater.optimiser = masked
        trainer.updater.guard = GuardedStep(trainer.learner, masked)
        assert trainer.updater.guard.fused
    trainer.train(3)
    before, states = parameters(trainer), trainer.optimiser.state_dict()["state"]
    moments = [value.clone() for state in states.values() for value in state.values()]
    trainer.step()
    assert all(torch.equal(*pair) for pair in zip(before, parameters(trainer), strict=True))
    after = [value for state in trainer.optimiser.state_dict()["state"].values()
             for value in state.values()]  # fmt: skip
    assert all(torch.equal(*pair) for pair in zip(moments, after, strict=True))
    trainer.step()
    assert not torch.equal(before[0], parameters(trainer)[0])
    assert all(bool(value.isfinite().all()) for value in parameters(trainer))


@pytest.mark.parametrize("strategy", ["random", "us", "ats", "derts"])
def test_bad_updates_are_counted_and_training_goes_on(
    strategy: str, letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, {0, 4, 5, 12}, "loss")
    events: list[dict[str, Any]] = []
    named = replace(SMALL.strategy, name=strategy, warmup=3)  # type: ignore[arg-type]
    config = replace(SMALL, strategy=named)
    Trainer(config, letters, events.append).train()
    assert [event["update"] for event in events if event["event"] == "skipped"] == [1, 5, 6, 13]
    windows = [event for event in events if event["event"] == "update"]
    assert [event["skipped"] for event in windows] == [3, 4, 4, 4, 4]
    assert all(math.isfinite(event["loss"]) for event in windows)


def test_ten_in_a_row_stop_with_cause_and_tasks(
    tmp_path: Path, letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, {2, *range(8, 18)}, "loss", task=2)
    with pytest.raises(DertsError) as stop:
        train(SMALL, tmp_path / "run", tables=letters, quiet=True)
    said = str(stop.value)
    assert "10 updates in a row, up to update 18: lower --learner.inner-lr (now 0.5)" in said
    assert "1 of its tasks" in said
    kept = TaskPool.load(tmp_path / "run" / "bad-tasks.safetensors")
    skipped = [event["update"] for event in Run.open(tmp_path / "run").events()
               if event["event"] == "skipped"]  # fmt: skip
    assert skipped == [3, *range(9, 19)]
    monkeypatch.undo()
    drawn = Trainer(SMALL, letters).draw(3, "batch", 17)
    assert torch.equal(kept.support, drawn[2:].support)
    assert resume(tmp_path / "run", tables=letters, quiet=True)["updates"] == 30


def test_nine_in_a_row_do_not_stop(letters: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, set(range(6, 15)), "gradient")
    trainer = Trainer(SMALL, letters)
    trainer.train()
    assert trainer.window.skipped == 9


def overflow(monkeypatch: pytest.MonkeyPatch, tasks: slice) -> None:
    """Let the estimates of some tasks of every pool be not finite."""
    whole = rounds.estimate_pool  # type: ignore[attr-defined]

    def overflowing(*arguments: Any, **options: Any) -> PoolEstimate:
        found: PoolEstimate = whole(*arguments, **options)
        found.gradients["logit"][tasks] = math.nan
        return found

    monkeypatch.setattr(rounds, "estimate_pool", overflowing)


OVERFLOWING = replace(
    SMALL,
    updates=4,
    strategy=replace(SMALL.strategy, name="derts", warmup=1, ratio=1.0, drop="none"),
)


def test_tasks_with_bad_estimates_are_left_out_and_counted(
    letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    overflow(monkeypatch, slice(2))
    events: list[dict[str, Any]] = []
    trainer = Trainer(OVERFLOWING, letters, events.append)
    trainer.train()
    assert isinstance(trainer.strategy, rounds.PoolStrategy)
    assert sorted(torch.cat(trainer.strategy.batches).tolist()) == list(range(2, 12))
    assert [event["not_finite"] for event in events if event["event"] == "round"] == [2]


def test_a_pool_without_any_finite_estimate_is_refused(
    letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    overflow(monkeypatch, slice(None))
    with pytest.raises(DertsError, match="none of a round's 12 tasks has finite numbers: lower"):
        Trainer(OVERFLOWING, letters).train()
