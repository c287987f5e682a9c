"""Run folders of older versions, and checkpoints that are whole but cannot be."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from derts.config import EvaluationConfig, ModelConfig, StrategyConfig, TaskConfig, TrainConfig
from derts.data import ImageTable
from derts.errors import DertsError
from derts.training import resume, train
from derts.training.checkpoint import checkpoint_files, load_checkpoint, save_checkpoint
from derts.training.run_folder import Run

Tables = dict[str, ImageTable]
State = dict[str, Any]

SMALL = TrainConfig(
    tasks=TaskConfig(shot=1, query=2),
    model=ModelConfig(width=4),
    evaluation=EvaluationConfig(tasks=20, query=3),
    strategy=StrategyConfig("derts", warmup=2, pool=12, ratio=0.5),
    updates=12,
    meta_batch=2,
    log_every=1,
    checkpoint_every=7,
)


@pytest.fixture
def stopped(tmp_path: Path, letters: Tables) -> Path:
    """A run whose newest checkpoint is at update 7, inside of a round."""
    train(SMALL, tmp_path / "run", tables=letters, quiet=True)
    (tmp_path / "run" / "result.json").unlink()
    checkpoint_files(tmp_path / "run" / "checkpoints")[-1].unlink()
    return tmp_path / "run"


def change(run: Path, how: Callable[[State], object]) -> None:
    newest = checkpoint_files(run / "checkpoints")[-1]
    state = load_checkpoint(newest)
    how(state)
    save_checkpoint(run / "checkpoints", int(newest.stem.rpartition("-")[2]), state)


def test_a_checkpoint_that_does_not_know_its_logs_keeps_them(
    stopped: Path, letters: Tables
) -> None:
    before = [event["update"] for event in Run.open(stopped).events()]
    change(stopped, lambda state: state.pop("logs"))
    resume(stopped, tables=letters, quiet=True)
    assert [event["update"] for event in Run.open(stopped).events()] == before


def test_settings_that_an_old_config_does_not_name_are_as_they_were(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", SMALL.resolved())
    config = run.path / "config.toml"
    kept = [
        line
        for line in config.read_text().splitlines()
        if not re.match(r"(pool_images|doubt|smoothing) =", line)
    ]
    assert Run.open(run.path).config.strategy.doubt == "votes"
    config.write_text("\n".join(kept))
    strategy = Run.open(run.path).config.strategy
    assert (strategy.pool_images, strategy.doubt) == (0, "none")
    assert Run.open(run.path).config.learner.smoothing == 0


def set_strategy(**values: Any) -> Callable[[State], object]:
    return lambda state: state["strategy"].update(values)


@pytest.mark.parametrize(
    "how",
    [
        set_strategy(position=99),
        set_strategy(position=-1),
        set_strategy(round=0),
        set_strategy(weights=torch.ones(3)),
        set_strategy(batches=[torch.tensor([99])]),
        lambda state: state.update(update=10**9),
        lambda state: state.update(update=-1),
        lambda state: state.update(logs="x"),
        lambda state: state.update(logs={"events.jsonl": -3}),
    ],
)
def test_whole_checkpoints_that_cannot_be_are_refused(
    how: Callable[[State], object], stopped: Path, letters: Tables
) -> None:
    events = (stopped / "events.jsonl").read_bytes()
    change(stopped, how)
    with pytest.raises(DertsError, match=r"does not fit|does not say"):
        resume(stopped, tables=letters, quiet=True)
    assert (stopped / "events.jsonl").read_bytes() == events
