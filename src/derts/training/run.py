"""The ways into training: begin, resume, several seeds, a folder, what was trained."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

from derts.config import TrainConfig
from derts.data import open_data
from derts.data.streaming import placed_tables
from derts.distributed import Group, joined
from derts.errors import DertsError, InterruptedRunError, say
from derts.files import locked
from derts.hardware import choose_device, limit_memory
from derts.progress import Advance, progress, unheard
from derts.tasks import TaskSampler
from derts.training.checkpoint import State, best_weights, checkpoint_files, newest_checkpoint
from derts.training.driver import Driver
from derts.training.memory import check_file_size, plan_pieces
from derts.training.result import Result
from derts.training.run_folder import Listen, Run
from derts.training.task_drawer import draw_tasks, evaluation_tasks
from derts.training.trainer import Tables, Trainer

PASSED_ON = 5.0  # seconds in which torchrun repeats a signal that the terminal sent already


def train(
    config: TrainConfig,
    out: Path | str | None = None,
    *,
    tables: Tables | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    listen: Listen | None = None,
) -> Result:
    """Train by a config, evaluate on its test split, and return the result.

    `out` is the run folder to write (None: keep nothing); `listen` hears every event that is
    logged. The result is what result.json holds.
    """
    config = config.resolved()
    with joined(choose_device(config.hardware.device)) as group, ExitStack() as stack:
        trainer = checked_trainer(config, tables, group, quiet)
        run = None if out is None else Run(Path(out), config)

        def begin() -> None:
            if run is not None:
                Run.check_free(run.path, overwrite)
                stack.enter_context(locked(run.path))
                run.clear(trainer.learner)

        group.first(begin)
        return _to_the_end(Driver(trainer, run, listen=listen), quiet)


def resume(
    path: Path | str,
    *,
    tables: Tables | None = None,
    quiet: bool = False,
    listen: Listen | None = None,
    data_changed: bool = False,
    data: str | None = None,
    updates: int | None = None,
) -> Result:
    """Go on with an interrupted run from its newest checkpoint, as if never interrupted.

    A run that ended before its first checkpoint begins again. The number of processes may be
    another than before. `data_changed`: even if the data was prepared anew since; `data`: where it
    is now. `updates` extends the run, finished or not, to so many: the learning rate goes on where
    the cosine of the longer run is.
    """
    run = Run.open(path)
    if tables is None:
        tables = open_data(run.data(data, data_changed, own=True))
    before = run.config.updates
    if updates is not None and updates < before:
        fix = f"a run can be extended, not shortened: give more than {before}"
        raise DertsError(f"--updates is {updates}: {fix}")
    config = run.config = replace(run.config, updates=updates or before)
    with joined(choose_device(config.hardware.device)) as group, ExitStack() as stack:
        group.first(lambda: stack.enter_context(locked(run.path)))
        trainer = checked_trainer(config, tables, group, quiet)
        state = _load_newest(trainer, run)
        if run.result() is not None and trainer.update == config.updates:
            told = f"{path} is finished, its result is in {run.path / 'result.json'}"
            raise DertsError(f"{told}: give more --updates to go on with it")
        group.first(lambda: run.rewind(state))
        list(run.events())  # one that is damaged would spoil the result, after all the work
        at = f"update {trainer.update + 1}"
        if config.updates != before and group.leads:
            text = (
                f"{config.updates} updates instead of {before}: the learning rate follows the "
                f"cosine of the new length, {trainer.learning_rate():.2g} at {at}"
            )
            say(text)
            run.extend(before)
            run.log({"event": "note", "text": text})
        if data_changed and run.data_changed() and group.leads:
            run.log({"event": "note", "text": f"the data was prepared anew before {at}"})
        return _to_the_end(Driver(trainer, run, listen=listen), quiet)


def seed_folders(out: Path) -> list[Path]:
    """The runs that `begin_seeds` left in a folder, by seed."""
    found = [file.parent for file in out.glob("seed-*/config.toml")]
    numbered = [one for one in found if one.name[5:].isdecimal()]
    return sorted(numbered, key=lambda one: int(one.name[5:]))


def begin_seeds(
    config: TrainConfig, seeds: Sequence[int], out: Path, overwrite: bool = False
) -> list[Path]:
    """Folders with configs, which `train_seeds` then trains; none where the runs could not be."""
    twice = [seed for seed in seeds if seeds.count(seed) > 1]
    if twice:
        raise DertsError(f"--seeds names {twice[0]} twice: give each once")
    if (out / "config.toml").exists():
        raise DertsError(f"{out} is a run already: choose another --out")
    configs = {out / f"seed-{seed}": replace(config, seed=seed).resolved() for seed in seeds}
    for folder in configs:
        Run.check_free(folder, overwrite)
    first = configs[out / f"seed-{seeds[0]}"]
    trainer = checked_trainer(first, placed_tables(config.data, config.hardware))
    for folder, one in configs.items():
        Run(folder, one).clear(trainer.learner)
    return list(configs)


def train_seeds(
    folders: Sequence[Path],
    *,
    quiet: bool = False,
    listen: Callable[[Path], Listen | None] = lambda folder: None,
    data_changed: bool = False,
    data: str | None = None,
    updates: int | None = None,
) -> list[Result]:
    """Train one run after the other, each from where it is; finished ones give their result.

    The options are those of `resume`. What ends one ends all; what is done is kept.
    """
    results = []
    for folder in folders:
        run = Run.open(folder)
        result = run.result()
        if result is None or result["updates"] < (updates or run.config.updates):
            tables = placed_tables(run.data(data, data_changed, own=True), run.config.hardware)
            try:
                result = resume(
                    folder, tables=tables, quiet=quiet, listen=listen(folder),
                    data_changed=data_changed, updates=updates,
                )  # fmt: skip
            except (DertsError, KeyboardInterrupt) as error:
                kind = DertsError if type(error) is DertsError else InterruptedRunError
                said = str(error).replace(f"--resume {folder}", f"--resume {folder.parent}")
                said = said or f"interrupted: go on with derts train --resume {folder.parent}"
                raise kind(f"seed {run.config.seed}: {said}") from None
        results.append(result)
    return results


def train_in(
    folder: Path,
    config: TrainConfig,
    tables: Tables,
    *,
    until: int | None = None,
    points: Sequence[int] = (),
    warmup: Path | None = None,
    advance: Advance = unheard,
    stopping: Callable[[], bool] = lambda: False,
) -> Result:
    """Begin a run in a folder of ours, or go on with the one there; as `Driver` otherwise.

    Without a checkpoint it is cleared. Of a finished run the newest one alone is kept.
    """
    with locked(folder):
        trainer = checked_trainer(config, tables)
        run = Run(folder, trainer.config)
        known = (folder / "config.toml").is_file()
        if known and (state := _load_newest(trainer, run)):
            run.rewind(state)
        else:
            run.clear(trainer.learner)
        driver = Driver(trainer, run, until, points, warmup, go_on="run this again")
        result = driver.drive(advance, stopping)
        if trainer.update == trainer.config.updates:
            for old in checkpoint_files(run.path / "checkpoints")[:-1]:
                old.unlink()
        return result


def open_trainer(path: Path | str, tables: Tables | None = None, *, last: bool = False) -> Trainer:
    """A trainer in the state of a run's newest checkpoint that is whole.

    Its learner has the weights that the run is judged by, or the `last`, as training would go on.
    """
    run = Run.open(path)
    if not (files := checkpoint_files(run.path / "checkpoints")):
        raise DertsError(f"{path} holds no checkpoint: train it first")
    tables = open_data(run.data()) if tables is None else tables
    if "train" in tables:
        check_file_size(run.config, tables["train"].item_shape, files)
    trainer = Trainer(run.config, tables)
    state = _load_newest(trainer, run)
    if not last:
        trainer.learner.load_state_dict(best_weights(state))
    return trainer


def checked_trainer(
    config: TrainConfig, tables: Tables | None, group: Group | None = None, quiet: bool = True
) -> Trainer:
    """A new Trainer; what the end of its run needs, and its memory, is looked at here."""
    tables = open_data(config.data) if tables is None else tables
    group = group or Group()
    validated = ["val"] if config.validate_every else []
    splits = [config.evaluation.split, *validated]
    if "train" in tables and not config.tasks.rotated:  # tasks that cannot be come first
        if config.tasks.way > len(tables["train"].class_names):
            known = [tables[name] for name in ("train", *splits) if name in tables]
            smallest = min(known, key=lambda table: len(table.class_names))
            # what it advises no other split will refuse
            draw_tasks(TaskSampler(smallest), config.tasks, 1, (0, "check"))
        sampler = TaskSampler(tables["train"], config.tasks.classes or None)
        draw_tasks(sampler, config.tasks, 1, (0, "check"))
    device = group.device or choose_device(config.hardware.device)
    pieces = plan_pieces(config, tables, device, group.size)
    limit_memory(device, config.hardware.memory_gib)
    shown = partial(progress, quiet=quiet or not group.leads)
    trainer = Trainer(config, tables, group=group, progress=shown, pieces=pieces)
    for split in splits:
        evaluation_tasks(trainer.config, trainer.split(split))
    return trainer


def _to_the_end(driver: Driver, quiet: bool) -> Result:
    """Train and evaluate until a signal; the leading process alone shows progress."""
    total, group = driver.trainer.config.updates, driver.trainer.group
    shown = progress("training", total, "updates", quiet=quiet or not group.leads)
    with stop_requests(0.0 if group.alone else PASSED_ON) as stopping, shown as advance:
        return driver.drive(advance, stopping)


def _load_newest(trainer: Trainer, run: Run) -> State:
    """Bring a trainer into the state of a run's newest checkpoint, which is returned ({}: none)."""
    found = newest_checkpoint(run.path / "checkpoints", quiet=not trainer.group.leads)
    if found is None:
        return {}
    path, state = found
    try:
        trainer.learner.load_state_dict(best_weights(state))  # these must fit too
        trainer.load_state_dict(state)
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"this config and data (images {'×'.join(map(str, trainer.item_shape))})"
        fix = f"use those it was trained with ({str(error).splitlines()[-1].strip()})"
        raise DertsError(f"{path} does not fit {what}: {fix}") from None
    return state


@contextmanager
def stop_requests(apart: float = 0.0) -> Iterator[Callable[[], bool]]:
    """Notes a first Ctrl-C or SIGTERM, which the function it yields tells; a second interrupts.

    What comes within `apart` seconds of the first is the same request, as when a terminal and a
    launcher both pass it on. Outside the main thread, where signals cannot be caught, nothing
    changes.
    """
    noted: list[float] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted and time.monotonic() >= noted[0] + apart:
            raise KeyboardInterrupt
        noted.append(time.monotonic())

    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
