"""derts diagnose, derts select: estimates judged, and rows of any matrix selected"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from derts.commands.parse import DataOptions, QuietOptions, print_rows
from derts.config import within
from derts.report.tables import table_text


@dataclass(frozen=True)
class DiagnoseOptions(DataOptions, QuietOptions):
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
    pool: int = within(640, 2)
    """Tasks in the pool."""
    ratio: float = within(0.3, 1e-6, 1)
    """Share of the pool that is selected."""
    draws: int = within(100, 2)
    """Random subsets to compare with."""


@dataclass(frozen=True)
class SelectOptions:
    """Select K rows of a matrix that stand for all of them (facility location).

    GRADIENTS is a .npy file of numbers [rows, dimensions]; any matrix will do. The result is JSON:
    indices in the order of picking, weights (how many rows each stands for), gains, objective.

    Examples:
      derts select gradients.npy --k 960 --out selection.json
    """

    gradients: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="GRADIENTS")]
    """A .npy file."""
    k: int
    """How many rows to select."""
    out: Path
    """JSON file to write."""
    engine: Literal["greedy", "lazy", "stochastic"] = "greedy"
    """Exact greedy, the same by lazy evaluation, or from random candidates."""
    epsilon: float = 0.01
    """stochastic: smaller looks at more candidates."""
    seed: int = 0
    """stochastic: decides the candidates."""
    memory_limit_gib: float = 2.0
    """Distances are kept in memory up to this size, and recomputed above it."""


def diagnose(options: DiagnoseOptions) -> None:
    from derts.config_file import as_values
    from derts.data import open_data
    from derts.diagnosis import diagnose as measure
    from derts.diagnosis import draw_diagnosis, table_rows
    from derts.files import write_json
    from derts.provenance import code_version, machine
    from derts.training.run import open_trainer
    from derts.training.run_folder import Run

    run = Run.open(options.run)
    data = open_data(run.data(options.data, options.data_changed))
    trainer = open_trainer(options.run, data, last=True)
    pool = trainer.draw(options.pool, "diagnosis", 0)
    found = measure(
        trainer.learner, trainer.images, pool,
        ratio=options.ratio, draws=options.draws, progress=options.progress,
    )  # fmt: skip
    values = {
        "updates": trainer.update,
        "config": as_values(trainer.config),
        "code": code_version(),
        "machine": machine(str(trainer.device)),
        **found,
    }
    written = write_json(run.path / "diagnosis.json", values)
    draw_diagnosis(values, run.path / "diagnosis.png")
    for rows in table_rows(values):
        print(f"{table_text(rows)}\n")
    print_rows(("written", f"{written}, {run.path / 'diagnosis.png'}"))


def select(options: SelectOptions) -> None:
    from derts.facility_location import select_file

    found = select_file(**vars(options))
    print_rows(
        ("selected", f"{len(found.indices)} rows"),
        ("objective", f"{found.objective:.6g} (sum of distances to the nearest selected row)"),
        ("largest weight", f"{float(found.weights.max()):.0f} rows"),
        ("written", options.out),
    )
