"""Several seeds of one config in one process: run folders seed-N, data opened once."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from derts.config import TrainConfig
from derts.data.streaming import placed_tables
from derts.errors import DertsError, InterruptedRunError
from derts.training.driver import Listen
from derts.training.result import Result
from derts.training.run import checked_trainer, resume
from derts.training.run_folder import Run


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
            place = run.data(data, data_changed, own=True)
            tables = placed_tables(place, run.config.hardware)
            try:
                result = resume(
                    folder, tables=tables, quiet=quiet, listen=listen(folder),
                    data_changed=data_changed, updates=updates,
                )  # fmt: skip
            except (DertsError, KeyboardInterrupt) as error:
                stopped = isinstance(error, InterruptedRunError | KeyboardInterrupt)
                kind = InterruptedRunError if stopped else DertsError
                said = str(error).replace(f"--resume {folder}", f"--resume {folder.parent}")
                said = said or f"interrupted: go on with derts train --resume {folder.parent}"
                raise kind(f"seed {run.config.seed}: {said}") from None
        results.append(result)
    return results
