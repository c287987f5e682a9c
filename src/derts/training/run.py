"""Train, evaluate and record one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from derts.training.interrupt import stop_requests
from derts.training.loop import Trainer, evaluation_tasks

Result = dict[str, Any]
Listen = Callable[[Result], None]


def train(
    config: TrainConfig,
    out: Path | str | None = None,
    *,
    tables: Mapping[str, ImageTable] | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    listen: Listen | None = None,
) -> Result:
    """Train by a config, evaluate on its test split, and return the result.

    `out` is the run folder to write (None: keep nothing); `listen` hears every event that is
    logged. The result is what result.json holds:
    config, code version, machine, accuracy with its interval and per task, seconds per phase.
    """
    config = config.resolved()
    tables = open_data(config.data) if tables is None else tables
    run: Run | None = None

    def log(event: Result) -> None:
        if run is not None:
            run.log(event)
        if listen is not None:
            listen(event)

    trainer = Trainer(config, tables, log)
    # what the end of the run needs is tried before its beginning
    evaluation_tasks(config, trainer.split(config.evaluation.split))
    if config.validate_every:
        evaluation_tasks(config, trainer.split("val"))
    if out is not None:
        run = Run.create(out, config, overwrite=overwrite)
        trainer.context.keep_round = run.keep_round
    return _finish(trainer, run, quiet)


def resume(
    path: Path | str,
    *,
    tables: Mapping[str, ImageTable] | None = None,
    quiet: bool = False,
    listen: Listen | None = None,
) -> Result:
    """Go on with an interrupted run from its newest checkpoint, as if never interrupted."""
    run = Run.open(path)
    trainer = open_trainer(path, tables)
    if trainer.update == run.config.updates and (run.path / "result.json").exists():
        raise DertsError(f"{path} is finished: its result is in {run.path / 'result.json'}")
    run.forget_events_after(trainer.update)

    def log(event: Result) -> None:
        run.log(event)
        if listen is not None:
            listen(event)

    trainer.log = trainer.context.log = log
    trainer.context.keep_round = run.keep_round
    return _finish(trainer, run, quiet)


def _finish(trainer: Trainer, run: Run | None, quiet: bool) -> Result:
    config = trainer.config
    try:
        with stop_requests() as stopping:
            _train_in_stretches(trainer, run, quiet, stopping)
    except KeyboardInterrupt:
        where = f"go on with derts train --resume {run.path}" if run else "nothing was kept"
        raise DertsError(
            f"interrupted in the middle of update {trainer.update + 1}: {where}"
        ) from None
    if trainer.update < config.updates:
        raise DertsError(_interrupted(trainer, run))
    evaluation = trainer.evaluate(config.evaluation.split)
    trainer.log(evaluation_event("evaluation", trainer, evaluation))
    result = make_result(trainer, evaluation)
    if run is not None:
        run.write_result(result)
    return result


def _train_in_stretches(
    trainer: Trainer, run: Run | None, quiet: bool, stopping: Callable[[], bool]
) -> None:
    config = trainer.config
    with progress("training", total=config.updates, unit="updates", quiet=quiet) as advance:
        advance(trainer.update)
        while trainer.update < config.updates and not stopping():
            every = [config.checkpoint_every, config.validate_every or config.updates]
            until = min((trainer.update // step + 1) * step for step in every)
            trainer.train(until, advance, stopping)
            if config.validate_every and trainer.update % config.validate_every == 0:
                trainer.log(evaluation_event("validation", trainer, trainer.evaluate("val")))
            at_end = trainer.update == config.updates
            if run is not None and (at_end or trainer.update % config.checkpoint_every == 0):
                with trainer.clock.phase("checkpoint"):
                    save_checkpoint(run.path / "checkpoints", trainer.update, trainer.state_dict())


def _interrupted(trainer: Trainer, run: Run | None) -> str:
    if run is None:
        return f"interrupted at update {trainer.update}: nothing was kept, as no --out was given"
    save_checkpoint(run.path / "checkpoints", trainer.update, trainer.state_dict())
    return (
        f"interrupted at update {trainer.update}: all is saved, "
        f"go on with derts train --resume {run.path}"
    )


def make_result(trainer: Trainer, evaluation: Evaluation) -> Result:
    """A result as it is written to JSON."""
    return {
        "config": as_values(trainer.config),
        "code": code_version(),
        "machine": machine(str(trainer.device)),
        "seed": trainer.config.seed,
        "updates": trainer.update,
        "tasks_trained": trainer.tasks_trained,
        "image_shape": list(trainer.images.image_shape),
        "images": {"count": len(trainer.images), "classes": len(trainer.images.class_names)},
        "seconds": {name: round(value, 4) for name, value in trainer.clock.seconds.items()},
        **_summary(evaluation),
        "accuracies": list(evaluation.accuracies),
    }


def evaluation_event(name: str, trainer: Trainer, evaluation: Evaluation) -> Result:
    """An evaluation as a line of the log."""
    return {"event": name, "update": trainer.update, **_summary(evaluation)}


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
    try:
        trainer.load_state_dict(load_checkpoint(found[-1]))
    except (RuntimeError, ValueError, KeyError) as error:
        shape = "×".join(map(str, trainer.images.image_shape))
        raise DertsError(
            f"{found[-1]} does not fit this config and data (images {shape}): use those it was "
            f"trained with ({str(error).splitlines()[-1].strip()})"
        ) from None
    return trainer
