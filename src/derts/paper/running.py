"""One run of the grid: begun or resumed, evaluated at its points, kept in its folder."""

from __future__ import annotations

import gc
import json
import shutil
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch

from derts.clock import TRAINING_PHASES
from derts.data import open_data
from derts.data.table import ImageTable
from derts.errors import DISK_FULL, DertsError
from derts.files import LOCK, locked, write_atomically
from derts.hardware import choose_device
from derts.paper.job import Job, point_file
from derts.progress import Advance
from derts.training.bad_numbers import BadNumbersError
from derts.training.checkpoint import (
    checkpoint_files,
    newest_checkpoint,
    save_checkpoint,
    say,
)
from derts.training.drawing import evaluation_tasks
from derts.training.hardware import place_table
from derts.training.run import keep_tasks, make_result
from derts.training.run_folder import Run, updates_at_random
from derts.training.trainer import Trainer

Tables = Mapping[str, ImageTable]
Ending = Literal["finished", "stopped", "failed"]


class Worker:
    """Runs jobs one after the other on one device; data stays there from job to job."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.tables: dict[str, Tables] = {}

    def run(self, job: Job, advance: Advance, stopping: Callable[[], bool]) -> tuple[Ending, str]:
        """Do a job; how it ended, with its accuracy or, where it failed, why.

        A failure that is not a plain mistake leaves error.txt behind.
        """
        hardware = replace(job.config.hardware, device=self.device)
        job = replace(job, config=replace(job.config, hardware=hardware))
        try:
            done = run_job(job, self._data(job), advance, stopping)
            return ("finished", _accuracy(job)) if done else ("stopped", "")
        except Exception as error:  # one job's failure is not the grid's
            lines = str(error).splitlines()
            reason = lines[0] if lines else type(error).__name__
            if isinstance(error, OSError) and error.errno in DISK_FULL:
                reason = f"the disk of {job.folder} is full: free some space, then run this again"
            elif not isinstance(error, DertsError):
                reason = f"{type(error).__name__}: {reason} (see {job.folder / 'error.txt'})"
                job.folder.mkdir(parents=True, exist_ok=True)
                write_atomically(job.folder / "error.txt", traceback.format_exc().encode())
            return "failed", reason
        finally:
            if torch.cuda.is_initialized():
                gc.collect()  # a trainer refers to itself: give back now what it holds of the GPU

    def _data(self, job: Job) -> Tables:
        name = job.config.data
        if name not in self.tables:
            device = choose_device(job.config.hardware)
            self.tables[name] = {
                split: place_table(table, device) for split, table in open_data(name).items()
            }
        return self.tables[name]


def _accuracy(job: Job) -> str:
    result = json.loads(point_file(job.folder, job.until).read_text(encoding="utf-8"))
    return f"accuracy {result['accuracy']:.2f}%"


def run_job(
    job: Job,
    tables: Tables,
    advance: Advance = lambda count=1, note=None: None,
    stopping: Callable[[], bool] = lambda: False,
) -> bool:
    """Train up to job.until, evaluating at the points on the way; False if stopped before."""
    with locked(job.folder):
        return _run_alone(job, tables, advance, stopping)


def _run_alone(job: Job, tables: Tables, advance: Advance, stopping: Callable[[], bool]) -> bool:
    trainer, run = _begin(job, tables)
    _measure(job, trainer, run)  # a process may have been killed just before that
    if trainer.update >= job.until and not point_file(run.path, job.until).exists():
        raise DertsError(
            f"{job.folder} went on past update {job.until} without being evaluated there: "
            "remove the folder to train it again"
        )
    run.log({"event": "start", "update": trainer.update})
    advance(trainer.update)
    while trainer.update < job.until and not stopping():
        begun = trainer.update
        try:
            trainer.train(_next_stop(job, begun), advance, stopping)
        except BadNumbersError as error:
            raise DertsError(f"{error}{keep_tasks(error, run.path)}") from None
        if trainer.update == begun:
            break
        if trainer.update == job.config.strategy.warmup:
            _share_warmup(job, trainer, run)
        _validate(trainer)
        if _is_due(job, trainer.update) or stopping():
            with trainer.clock.phase("checkpoint"):
                state = {**trainer.state_dict(), "logs": run.positions()}
                save_checkpoint(run.path / "checkpoints", trainer.update, state)
        _measure(job, trainer, run)  # last: a result says that its model is there
    if trainer.update == job.config.updates:
        for old in checkpoint_files(run.path / "checkpoints")[:-1]:
            old.unlink()
    return trainer.update >= job.until


def _begin(job: Job, tables: Tables) -> tuple[Trainer, Run]:
    """A trainer where the run stands: at its checkpoint, after a shared warm-up, or new."""
    config, saved = job.config, newest_checkpoint(job.folder / "checkpoints", say)
    trainer = Trainer(config, tables)
    for split in ("val", config.evaluation.split):  # refuse now what would fail at the end
        evaluation_tasks(config, trainer.split(split))
    if saved is not None and (job.folder / "config.toml").is_file():
        run = Run.open(job.folder)
        trainer.load_state_dict(saved[1])
        run.rewind(saved[1]["logs"])
        trainer.log = trainer.context.log = run.log
        return trainer, run
    # what a crash before the first checkpoint left is not worth keeping
    for old in job.folder.iterdir():
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        elif old.name != LOCK:
            old.unlink()
    run = Run.create(job.folder, config)
    trainer.log = trainer.context.log = run.log
    shared = _shared_warmup(job) if config.strategy.warmup <= min(job.points) else None
    if shared is not None:
        trainer.load_state_dict(shared)
        shutil.copyfile(job.warmup / "events.jsonl", run.path / "events.jsonl")
        _validate(trainer)
    return trainer, run


def _next_stop(job: Job, update: int) -> int:
    every = (job.config.checkpoint_every, job.config.validate_every)
    stops = [(update // step + 1) * step for step in every]
    stops += [stop for stop in (job.config.strategy.warmup, *job.points) if stop > update]
    return min(*stops, job.until)


def _is_due(job: Job, update: int) -> bool:
    """Whether a checkpoint belongs here; a stop for validation alone is soon made again."""
    return update % job.config.checkpoint_every == 0 or update in (*job.points, job.until)


def _shared_warmup(job: Job) -> dict[str, Any] | None:
    """The end of the warm-up that another run left, if it is whole."""
    try:
        found = newest_checkpoint(job.warmup)
    except DertsError as error:
        say(f"{str(error).rpartition(',')[0]}: the warm-up is done again")
        return None
    return None if found is None else found[1]


def _share_warmup(job: Job, trainer: Trainer, run: Run) -> None:
    """Leave the end of the warm-up for others, or take theirs if they were first."""
    found = _shared_warmup(job)
    if found is not None:
        seconds = dict(trainer.clock.seconds)
        trainer.load_state_dict(found)
        trainer.clock.seconds = seconds
        return
    job.warmup.mkdir(parents=True, exist_ok=True)
    write_atomically(job.warmup / "events.jsonl", (run.path / "events.jsonl").read_bytes())
    save_checkpoint(job.warmup, trainer.update, trainer.state_dict())


def _validate(trainer: Trainer) -> None:
    """Look at the validation classes where that is due."""
    if trainer.validation_is_due():
        found = trainer.validate()
        trainer.log({"event": "validation", "update": trainer.update, "accuracy": found.mean})


def _measure(job: Job, trainer: Trainer, run: Run) -> None:
    """Keep a result where one is due and not there yet."""
    point = point_file(run.path, trainer.update)
    if trainer.update not in job.points or point.exists():
        return
    evaluation = trainer.judge(job.config.evaluation.split)
    result = make_result(trainer, evaluation)
    result["seconds_per_update"] = seconds_per_update(run.events(), job.config.strategy.warmup)
    random, updates = updates_at_random(run.events(), trainer.update)
    if updates:
        result["random_share"] = random / updates
    if trainer.update == job.config.updates:
        run.write_result(result)
    run.write_result(result, point.name)


def seconds_per_update(events: Iterable[dict[str, Any]], warmup: int) -> float | None:
    """Training time per update after the warm-up, from a run's events.

    Left out is the first stretch after each start of the program, which compiles and warms up,
    where there are others.

    >>> events = [{"event": "start", "update": 0}]
    >>> events += [{"event": "update", "update": at, "seconds": {"update": taken}}
    ...            for at, taken in ((10, 60.0), (20, 2.0), (30, 4.0))]
    >>> seconds_per_update(events, warmup=10)
    0.3
    """
    begun, fresh = 0, False
    stretches: list[tuple[bool, bool, int, float]] = []
    for event in events:
        if event["event"] == "start":
            begun, fresh = event["update"], True
        elif event["event"] == "update":
            seconds = sum(event["seconds"].get(name, 0.0) for name in TRAINING_PHASES)
            stretches.append((begun >= warmup, not fresh, event["update"] - begun, seconds))
            begun, fresh = event["update"], False
    if not stretches:
        return None
    best = max(stretch[:2] for stretch in stretches)
    used = [stretch for stretch in stretches if stretch[:2] == best]
    return round(sum(stretch[3] for stretch in used) / sum(stretch[2] for stretch in used), 6)
