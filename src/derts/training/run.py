"""Train, evaluate and record one run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from derts.config import TrainConfig
from derts.config_file import as_values
from derts.data import open_data
from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.evaluation import Evaluation
from derts.progress import progress
from derts.runs import Run, code_version, machine
from derts.training.checkpoint import checkpoint_files, load_checkpoint, save_checkpoint
from derts.training.loop import Trainer

Result = dict[str, Any]


def train(
    config: TrainConfig,
    out: Path | str | None = None,
    *,
    tables: Mapping[str, ImageTable] | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> Result:
    """Train by a config, evaluate on its test split, and return the result.

    `out` is the run folder to write (None: keep nothing). The result is what result.json holds:
    config, code version, machine, accuracy with its interval and per task, seconds per phase.
    """
    config = config.resolved()
    tables = open_data(config.data) if tables is None else tables
    run: Run | None = None

    def log(event: Result) -> None:
        if run is not None:
            run.log(event)

    trainer = Trainer(config, tables, log)
    trainer.split(config.evaluation.split)
    if out is not None:
        run = Run.create(out, config, overwrite=overwrite)
    try:
        _train_in_stretches(trainer, run, quiet)
    except KeyboardInterrupt:
        raise DertsError(_interrupted(trainer, run)) from None
    evaluation = trainer.evaluate(config.evaluation.split)
    log({"event": "evaluation", "update": trainer.update, **_summary(evaluation)})
    result = make_result(trainer, evaluation)
    if run is not None:
        run.write_result(result)
    return result


def _train_in_stretches(trainer: Trainer, run: Run | None, quiet: bool) -> None:
    config = trainer.config
    with progress("training", total=config.updates, unit="updates", quiet=quiet) as advance:
        while trainer.update < config.updates:
            every = [config.checkpoint_every, config.validate_every or config.updates]
            trainer.train(min((trainer.update // step + 1) * step for step in every), advance)
            if config.validate_every and trainer.update % config.validate_every == 0:
                evaluation = trainer.evaluate("val")
                trainer.log(
                    {"event": "validation", "update": trainer.update, **_summary(evaluation)}
                )
            at_end = trainer.update == config.updates
            if run is not None and (at_end or trainer.update % config.checkpoint_every == 0):
                with trainer.clock.phase("checkpoint"):
                    save_checkpoint(run.path / "checkpoints", trainer.update, trainer.state_dict())


def _interrupted(trainer: Trainer, run: Run | None) -> str:
    if run is None:
        return f"interrupted at update {trainer.update}: nothing was saved, as no --out was given"
    path = save_checkpoint(run.path / "checkpoints", trainer.update, trainer.state_dict())
    return f"interrupted at update {trainer.update}: all is saved in {path}"


def make_result(trainer: Trainer, evaluation: Evaluation) -> Result:
    """A result as it is written to JSON."""
    return {
        "config": as_values(trainer.config),
        "code": code_version(),
        "machine": machine(str(trainer.device)),
        "seed": trainer.config.seed,
        "updates": trainer.update,
        "tasks_trained": trainer.tasks_trained,
        "seconds": {name: round(value, 4) for name, value in trainer.clock.seconds.items()},
        **_summary(evaluation),
        "accuracies": list(evaluation.accuracies),
    }


def _summary(evaluation: Evaluation) -> Result:
    return {
        "split": evaluation.split,
        "accuracy": round(evaluation.mean, 4),
        "interval": round(evaluation.interval, 4),
    }


def open_trainer(path: Path | str, tables: Mapping[str, ImageTable] | None = None) -> Trainer:
    """A trainer in the state of a run's newest checkpoint."""
    run = Run.open(path)
    found = checkpoint_files(run.path / "checkpoints")
    if not found:
        raise DertsError(f"{path} holds no checkpoint: train it first")
    trainer = Trainer(run.config, open_data(run.config.data) if tables is None else tables)
    trainer.load_state_dict(load_checkpoint(found[-1]))
    return trainer
