"""derts diagnose"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from derts.commands.parse import DataOptions, parse, print_table
from derts.errors import DertsError


@dataclass(frozen=True)
class DiagnoseOptions(DataOptions):
    """How well does each estimate stand for a pool's true gradient?

    Loads a run's newest checkpoint, draws a pool of training tasks as the run would, and shows for
    every estimate and weighting the relative error of the pool's exact gradient, beside random
    subsets of the same size; how well distances agree with the exact ones; and how well each score
    tells noisy tasks from clean. Writes diagnosis.json and diagnosis.png into the run folder.

    Examples:
      derts diagnose runs/first --pool 640
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A folder that derts train wrote."""
    pool: int = 640
    """Tasks in the pool."""
    ratio: float = 0.3
    """Share of the pool that is selected."""
    draws: int = 100
    """Random subsets to compare with."""
    quiet: bool = False
    """No progress, just the result."""


def diagnose(arguments: Sequence[str]) -> None:
    """Parse, diagnose, print, draw."""
    options = parse(DiagnoseOptions, arguments, "diagnose")

    for name, value, least, most in (
        ("pool", options.pool, 2, 1e9),
        ("ratio", options.ratio, 1e-6, 1),
        ("draws", options.draws, 2, 1e9),
    ):
        if not least <= value <= most:
            raise DertsError(f"--{name} is {value}: it must be between {least:g} and {most:g}")

    from derts.config_file import as_values
    from derts.data import open_data
    from derts.diagnosis import diagnose as measure
    from derts.diagnosis import draw_diagnosis, table_rows
    from derts.files import write_atomically
    from derts.progress import progress, silent
    from derts.provenance import code_version, machine
    from derts.training.run import open_trainer
    from derts.training.run_folder import Run

    run = Run.open(options.run)
    data = open_data(run.data(options.data, options.data_changed))
    trainer = open_trainer(options.run, data, last=True)
    pool = trainer.draw(options.pool, "diagnosis", 0)
    shown = silent if options.quiet else progress
    found = measure(
        trainer.learner, trainer.images, pool,
        ratio=options.ratio, draws=options.draws, progress=shown,
    )  # fmt: skip
    values = {
        "updates": trainer.update,
        "config": as_values(trainer.config),
        "code": code_version(),
        "machine": machine(str(trainer.device)),
        **asdict(found),
    }
    write_atomically(run.path / "diagnosis.json", (json.dumps(values, indent=1) + "\n").encode())
    draw_diagnosis(values, run.path / "diagnosis.png")
    for rows in table_rows(values):
        print_table(rows)
        print()
    print(f"written  {run.path / 'diagnosis.json'}, {run.path / 'diagnosis.png'}")
