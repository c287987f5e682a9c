"""derts runs, derts compare"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from derts.commands.parse import parse, print_table, unset
from derts.errors import DertsError

RUNS = """List run folders with their status and result, newest last.

Examples:
  derts runs
  derts runs results/grid
"""

COMPARE = """Runs side by side in a table: accuracy, paired difference, wrong labels, time.

Runs that differ in nothing but the seed are taken together; differences are paired, seed by seed,
against random (or the first). derts report draws the same as a page.

Examples:
  derts compare runs/random-seed0 runs/derts-seed0
  derts compare runs/demo
"""


@dataclass(frozen=True)
class RunsOptions:
    """Options of `derts runs`."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="[FOLDER]")] = Path("runs")
    """Where to look, at any depth."""


@dataclass(frozen=True)
class CompareOptions:
    """Options of `derts compare`."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, unset("RUN [RUN …]")]
    """Run folders, or folders of such."""


def runs(arguments: Sequence[str]) -> None:
    """Parse, look, print."""
    options = parse(RunsOptions, arguments, "runs", RUNS)

    from derts.report.read import RunStory
    from derts.training.run_folder import Run

    if not options.folder.is_dir():
        raise DertsError(f"{options.folder} is not a folder: give the one that holds your runs")
    files = sorted(options.folder.rglob("config.toml"), key=lambda file: file.stat().st_mtime)
    rows = [("run", "learner", "strategy", "data", "seed", "status", "accuracy")]
    for file in files:
        try:
            story = RunStory(Run.open(file.parent))
        except DertsError:
            rows.append((str(file.parent), "", "", "", "", "cannot be read", ""))
            continue
        config, result = story.config, story.result
        rows.append(
            (
                str(file.parent),
                config.learner.name,
                config.strategy.name,
                Path(config.data).name,
                str(config.seed),
                story.status,
                f"{result['accuracy']:.2f} ± {result['interval']:.2f}" if result else "",
            )
        )
    if len(rows) == 1:
        raise DertsError(f"no run folder in {options.folder}: derts train makes one")
    print_table(rows)


def compare(arguments: Sequence[str]) -> None:
    """Parse, read, print."""
    options = parse(CompareOptions, arguments, "compare", COMPARE)

    from derts.report.read import (
        comparison_of,
        differing_settings,
        flat_values,
        group_runs,
        read_runs,
    )

    if not options.runs:
        raise DertsError("no run is named: give two or more run folders (derts compare --help)")
    groups = group_runs(read_runs(options.runs))
    comparison = comparison_of(groups)
    if not comparison.results:
        raise DertsError("none of these runs is finished: wait, or derts train --resume RUN")
    print_table(comparison.table())
    different = differing_settings([group.config for group in groups])
    if different:
        print()
        values = [flat_values(group.config) for group in groups]
        settings = [(name, *(str(value.get(name, "")) for value in values)) for name in different]
        print_table([("setting", *(group.name for group in groups)), *settings])
