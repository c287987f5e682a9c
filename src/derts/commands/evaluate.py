"""derts evaluate"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from derts.commands.parse import parse, print_rows, unset

DESCRIPTION = """Evaluate a trained run on a fixed, seeded set of clean tasks.

Examples:
  derts evaluate runs/first
  derts evaluate runs/first --split val --tasks 2000
  derts evaluate runs/first --data other-store --shot 1
"""


@dataclass(frozen=True)
class EvaluateOptions:
    """Options of `derts evaluate`."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A folder that derts train wrote."""
    data: Annotated[str | None, unset("DATA")] = None
    """Other data than the run was trained on."""
    split: str = "test"
    """Which split to draw tasks from."""
    tasks: Annotated[int | None, unset("INT")] = None
    """How many tasks (default: the run's setting, 600)."""
    shot: Annotated[int | None, unset("INT")] = None
    """Support images per class (default: as trained)."""
    query: Annotated[int | None, unset("INT")] = None
    """Query images per class (default: the run's setting, 15)."""


def evaluate(arguments: Sequence[str]) -> None:
    """Parse, evaluate, print, and write the result beside the run's own."""
    options = parse(EvaluateOptions, arguments, "evaluate", DESCRIPTION)

    from derts.config_file import with_values
    from derts.data import open_data
    from derts.training.result import make_result
    from derts.training.run import open_trainer
    from derts.training.run_folder import Run

    run = Run.open(options.run)
    tables = open_data(options.data or run.config.data)
    trainer = open_trainer(options.run, tables)
    asked = {"split": options.split, "tasks": options.tasks, "query": options.query}
    trainer.config = with_values(
        trainer.config,
        {
            "evaluation": {name: value for name, value in asked.items() if value is not None},
            "tasks": {} if options.shot is None else {"shot": options.shot},
        },
        "derts evaluate",
    ).resolved()
    evaluation = trainer.evaluate(options.split)
    result = make_result(trainer, evaluation, run.events())
    shot = trainer.config.tasks.shot
    path = run.write_result(result, f"evaluation-{options.split}-{shot}shot.json")
    print_rows(
        [
            ("accuracy", f"{evaluation.mean:.2f}% ± {evaluation.interval:.2f}"),
            ("weights", f"of update {result['weights_of_update']}"),
            ("tasks", f"{len(evaluation.accuracies)} of split {options.split}, {shot} shot"),
            ("written", str(path)),
        ]
    )
