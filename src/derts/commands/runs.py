"""derts runs, derts compare, derts report, derts evaluate"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from derts.commands.parse import DataOptions, print_rows, unset
from derts.errors import DertsError
from derts.report.tables import table_text


@dataclass(frozen=True)
class RunsOptions:
    """List run folders with their status and result, newest last.

    Examples:
      derts runs
      derts runs results/grid
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="[FOLDER]")] = Path("runs")
    """Where to look, at any depth."""


@dataclass(frozen=True)
class CompareOptions:
    """Runs side by side in a table: accuracy, paired difference, wrong labels, time.

    Runs that differ in nothing but the seed are taken together; differences are paired, seed by
    seed, against random (or the first). derts report draws the same as a page.

    Examples:
      derts compare runs/random-seed0 runs/derts-seed0
      derts compare runs/demo
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, unset("RUN [RUN …]")]
    """Run folders, or folders of such."""


@dataclass(frozen=True)
class ReportOptions(DataOptions):
    """One page about runs: what they reached, what they selected, where the time went.

    RUN is a folder that derts train wrote, or a folder of such. Runs that differ in nothing but the
    seed are taken together; differences are paired, seed by seed, against random (or the first).
    The page needs no network; the tasks' images are in it where the runs' data is at hand.

    Examples:
      derts report runs/first
      derts report runs/random-* runs/derts-* -o report.html
      derts report runs/demo --png figures
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, unset("RUN [RUN …]")]
    """Run folders."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html")
    """The page to write."""
    png: Annotated[Path | None, unset("FOLDER")] = None
    """Also write each figure, in print quality, into this folder."""


@dataclass(frozen=True)
class EvaluateOptions(DataOptions):
    """Evaluate a trained run on a fixed, seeded set of tasks, labelled as the data is.

    Examples:
      derts evaluate runs/first
      derts evaluate runs/first --split val --tasks 2000
      derts evaluate runs/first --data other-store --shot 1
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A folder that derts train wrote."""
    split: str = "test"
    """Which split to draw tasks from."""
    tasks: Annotated[int | None, unset("INT")] = None
    """How many tasks (default: the run's setting, 600)."""
    shot: Annotated[int | None, unset("INT")] = None
    """Support images per class (default: as trained)."""
    query: Annotated[int | None, unset("INT")] = None
    """Query images per class (default: the run's setting, 15)."""


def runs(options: RunsOptions) -> None:
    from derts.report.read import RunHistory
    from derts.training.run_folder import Run

    if not options.folder.is_dir():
        raise DertsError(f"{options.folder} is not a folder: give the one that holds your runs")
    files = sorted(options.folder.rglob("config.toml"), key=lambda file: file.stat().st_mtime)
    rows = [("run", "learner", "strategy", "data", "seed", "status", "accuracy")]
    for file in files:
        try:
            history = RunHistory(Run.open(file.parent))
        except (DertsError, OSError):
            rows.append((str(file.parent), "", "", "", "", "cannot be read", ""))
            continue
        config = history.config
        about = config.learner.name, config.strategy.name, Path(config.data).name, str(config.seed)
        rows.append((str(file.parent), *about, history.status, history.reached))
    if len(rows) == 1:
        raise DertsError(f"no run folder in {options.folder}: derts train makes one")
    print(table_text(rows))


def compare(options: CompareOptions) -> None:
    from derts.report import read

    groups = read.group_runs(read.read_runs(options.runs))
    results = read.finished_results(groups)
    if not results:
        raise DertsError("none of these runs is finished: wait, or derts train --resume RUN")
    print(table_text(read.comparison_table(results)))
    if settings := read.settings_table(groups):
        print(f"\n{table_text(settings)}")


def report(options: ReportOptions) -> None:
    if options.out.is_dir():
        raise DertsError(f"{options.out} is a folder: name a file, as {options.out}/report.html")

    from derts.report.figures import save_figure
    from derts.report.page import make_report

    made = make_report(options.runs, data=options.data, data_changed=options.data_changed)
    print_rows(("report ", made.save(options.out)))
    if options.png is not None:
        options.png.mkdir(parents=True, exist_ok=True)
        for name, figure in made.figures.items():
            save_figure(figure, options.png / f"{name}.png", dpi=300, facecolor="white")
        print_rows(("figures", f"{len(made.figures)} in {options.png}"))


def evaluate(options: EvaluateOptions) -> None:
    from derts.config_file import with_values
    from derts.data import open_data
    from derts.files import write_json
    from derts.training.result import make_result
    from derts.training.run import open_trainer
    from derts.training.run_folder import CHANGED, Run

    run = Run.open(options.run)
    tables = open_data(run.data(options.data, options.data_changed))
    trainer = open_trainer(options.run, tables)
    shot = run.config.tasks.shot if options.shot is None else options.shot
    asked = {"split": options.split, "tasks": options.tasks, "query": options.query}
    given = {name: value for name, value in asked.items() if value is not None}
    values = {"evaluation": given, "tasks": {"shot": shot}}
    try:
        trainer.config = with_values(trainer.config, values, "derts evaluate")
        evaluation = trainer.evaluate(options.split)
    except DertsError as error:  # by the names that the options have here
        raise DertsError(re.sub(r"--(?:tasks|evaluation)\.(?!way)", "--", str(error))) from None
    result = make_result(trainer, evaluation, run.events())
    if options.data_changed and options.data is None and run.data_changed():
        result["notes"].append(CHANGED)
    path = write_json(run.path / f"evaluation-{options.split}-{shot}shot.json", result)
    print_rows(
        ("accuracy", f"{evaluation.mean:.2f}% ± {evaluation.interval:.2f}"),
        ("weights", f"of update {result['weights_of_update']}"),
        ("tasks", f"{len(evaluation.accuracies)} of split {options.split}, {shot} shot"),
        ("written", path),
    )
