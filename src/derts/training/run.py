"""Train, evaluate and record one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from derts.config import TrainConfig
from derts.config_file import as_values
from derts.data import open_data
from derts.data.table import ImageTable
from derts.distributed import LostProcessError, joined
from derts.errors import DISK_FULL, DertsError
from derts.evaluation import Evaluation
from derts.files import locked
from derts.hardware import choose_device
from derts.progress import progress
from derts.provenance import code_version, machine
from derts.training.bad_numbers import BadNumbersError
from derts.training.best import judged_weights
from derts.training.checkpoint import checkpoint_files, newest_checkpoint, save_checkpoint, say
from derts.training.drawing import evaluation_tasks
from derts.training.interrupt import stop_requests
from derts.training.run_folder import Run
from derts.training.trainer import Trainer

Result = dict[str, Any]
Listen = Callable[[Result], None]
BAD_TASKS = "bad-tasks.safetensors"
PASSED_ON = 5.0  # seconds in which torchrun repeats a signal that the terminal sent already


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
    with joined(choose_device(config.hardware)) as group:
        tables = open_data(config.data) if tables is None else tables
        trainer = Trainer(config, tables, group=group)
        # what the end of the run needs is tried before its beginning
        evaluation_tasks(config, trainer.split(config.evaluation.split))
        if config.validate_every:
            evaluation_tasks(config, trainer.split("val"))
        if out is None:
            return _finish(trainer, None, quiet, listen)
        out = Path(out)
        with ExitStack() as stack:

            def begin() -> None:
                Run.check_free(out, overwrite=overwrite)
                stack.enter_context(locked(out))
                Run.create(out, config, overwrite=overwrite)

            group.first(begin)
            return _finish(trainer, Run(out, config), quiet, listen)


def resume(
    path: Path | str,
    *,
    tables: Mapping[str, ImageTable] | None = None,
    quiet: bool = False,
    listen: Listen | None = None,
) -> Result:
    """Go on with an interrupted run from its newest checkpoint, as if never interrupted.

    A run that ended before its first checkpoint begins again. The number of processes may be
    another than before.
    """
    run = Run.open(path)
    with joined(choose_device(run.config.hardware)) as group, ExitStack() as stack:
        group.first(lambda: stack.enter_context(locked(run.path)))
        tables = open_data(run.config.data) if tables is None else tables
        trainer = Trainer(run.config, tables, group=group)
        state = _load_newest(trainer, run)
        if trainer.update == run.config.updates and (run.path / "result.json").exists():
            raise DertsError(f"{path} is finished: its result is in {run.path / 'result.json'}")
        group.first(lambda: run.rewind(_log_positions(run, state)))
        return _finish(trainer, run, quiet, listen)


def _finish(trainer: Trainer, run: Run | None, quiet: bool, listen: Listen | None) -> Result:
    """Train and evaluate; the leading process alone writes to the run folder."""
    config, leads = trainer.config, trainer.group.leads
    quiet = quiet or not leads
    if leads:
        _record(trainer, run, listen)
    try:
        with stop_requests(0.0 if trainer.group.alone else PASSED_ON) as stopping:
            _train_in_stretches(trainer, run, quiet, stopping)
            if trainer.update < config.updates:
                raise DertsError(_interrupted(trainer, run))
            evaluation = trainer.judge(config.evaluation.split)
        trainer.log(evaluation_event("evaluation", trainer, evaluation))
        result = make_result(trainer, evaluation)
        if run is not None and leads:
            run.write_result(result)
    except KeyboardInterrupt:
        raise DertsError(
            f"interrupted in the middle of update {trainer.update + 1}: {_go_on(run)}"
        ) from None
    except LostProcessError as error:
        raise DertsError(f"{error} at update {trainer.update}: {_go_on(run)}") from None
    except BadNumbersError as error:
        kept = keep_tasks(error, run.path) if run is not None and leads else ""
        trainer.group.let_leader_speak()
        raise DertsError(f"{error}{kept}") from None
    except OSError as error:
        if error.errno not in DISK_FULL or run is None:
            raise
        raise DertsError(
            f"the disk of {run.path} is full at update {trainer.update}: free some space, then "
            f"{_go_on(run)}"
        ) from None
    return result


def _record(trainer: Trainer, run: Run | None, listen: Listen | None) -> None:
    """Events go to the run folder and to whoever listens; rounds to the run folder."""

    def log(event: Result) -> None:
        if run is not None:
            run.log(event)
        if listen is not None:
            listen(event)

    trainer.log = trainer.context.log = log
    if run is not None:
        trainer.context.keep_round = run.keep_round


def _train_in_stretches(
    trainer: Trainer, run: Run | None, quiet: bool, stopping: Callable[[], bool]
) -> None:
    config = trainer.config
    with progress("training", total=config.updates, unit="updates", quiet=quiet) as advance:
        advance(trainer.update)
        while trainer.update < config.updates:
            every = [config.checkpoint_every, config.validate_every or config.updates]
            until = min((trainer.update // step + 1) * step for step in every)
            trainer.train(until, advance, stopping)
            if trainer.update < min(until, config.updates):
                return
            if trainer.validation_is_due():
                trainer.log(evaluation_event("validation", trainer, trainer.validate()))
            at_end = trainer.update == config.updates
            if run is not None and (at_end or trainer.update % config.checkpoint_every == 0):
                with trainer.clock.phase("checkpoint"):
                    _save(trainer, run)


def _save(trainer: Trainer, run: Run) -> None:
    def write() -> None:
        state = {**trainer.state_dict(), "logs": run.positions()}
        save_checkpoint(run.path / "checkpoints", trainer.update, state)

    trainer.group.first(write)


def _interrupted(trainer: Trainer, run: Run | None) -> str:
    if run is None:
        return f"interrupted at update {trainer.update}: nothing was kept, as no --out was given"
    _save(trainer, run)
    trainer.group.let_leader_speak()
    return f"interrupted at update {trainer.update}: all is saved, {_go_on(run)}"


def _go_on(run: Run | None) -> str:
    return f"go on with derts train --resume {run.path}" if run else "nothing was kept"


def keep_tasks(error: BadNumbersError, folder: Path) -> str:
    """Save the tasks that ended training in the run folder; where they are, in words."""
    error.tasks.save(folder / BAD_TASKS)
    return f" ({len(error.tasks)} of its tasks are in {folder / BAD_TASKS}: TaskPool.load)"


def make_result(trainer: Trainer, evaluation: Evaluation) -> Result:
    """A result as it is written to JSON."""
    return {
        "config": as_values(trainer.config),
        "code": code_version(),
        "machine": machine(str(trainer.device)),
        "seed": trainer.config.seed,
        "updates": trainer.update,
        "weights_of_update": trainer.update if trainer.best is None else trainer.best.update,
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


def open_trainer(
    path: Path | str, tables: Mapping[str, ImageTable] | None = None, *, last: bool = False
) -> Trainer:
    """A trainer in the state of a run's newest checkpoint that is whole.

    Its learner has the weights that the run is judged by, or the `last`, as training would go on.
    """
    run = Run.open(path)
    if not checkpoint_files(run.path / "checkpoints"):
        raise DertsError(f"{path} holds no checkpoint: train it first")
    trainer = Trainer(run.config, open_data(run.config.data) if tables is None else tables)
    state = _load_newest(trainer, run)
    if not last:
        trainer.learner.load_state_dict(judged_weights(state))
    return trainer


def _log_positions(run: Run, state: Result) -> Any:
    """How long the logs were at a checkpoint; nothing of them is kept where there is none."""
    if not state:
        return {}
    return state["logs"] if "logs" in state else run.positions_at(state["update"])


def _load_newest(trainer: Trainer, run: Run) -> Result:
    """Bring a trainer into the state of a run's newest checkpoint, which is returned."""

    def warn(line: str) -> None:
        if trainer.group.leads:
            say(line)

    found = newest_checkpoint(run.path / "checkpoints", warn)
    if found is None:
        return {}
    path, state = found
    try:
        trainer.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        shape = "×".join(map(str, trainer.images.image_shape))
        raise DertsError(
            f"{path} does not fit this config and data (images {shape}): use those it was "
            f"trained with ({str(error).splitlines()[-1].strip()})"
        ) from None
    return state
