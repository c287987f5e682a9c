"""What one command asks for: names, cells, runs; its plan, its reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from derts.errors import DertsError
from derts.files import write_atomically
from derts.paper.collecting import collect, measured_jobs
from derts.paper.figures import DRAWN, draw_figures
from derts.paper.job import Folders, Job, make_jobs, point, point_file, to_run
from derts.paper.known import Known
from derts.paper.outcomes import (
    Outcomes,
    keep_what_is_lost,
    load_outcomes,
    result_file,
    save_outcomes,
)
from derts.paper.planning import Planned, Speeds, plan
from derts.paper.recipe import Cell, Setting, cells, keep_only, read_recipe, with_references
from derts.paper.report import Report, as_html, make_report, markdown, print_report
from derts.paper.scale import Scale


@dataclass(frozen=True, eq=False)
class Experiment:
    """Cells that are asked for, and the runs that they need.

    Reports are of whole tables, with all of their runs that are there already.

    >>> from pathlib import Path
    >>> asked = Experiment.make(["table3", "table8"], ["learner=anil", "shot=1"], range(3),
    ...                         Scale({}), Path("runs"))
    >>> len(asked.cells), len(asked.jobs)
    (10, 30)
    """

    names: tuple[str, ...]
    cells: tuple[Cell, ...]
    jobs: dict[tuple[Setting, int], Job]
    seeds: tuple[int, ...]
    scale: Scale
    out: Path
    known: Known = field(default_factory=Known)

    @staticmethod
    def make(
        names: Sequence[str],
        only: Sequence[str],
        seeds: Sequence[int],
        scale: Scale,
        out: Path,
        known: Path | None = None,
    ) -> Experiment:
        """Expand recipes; nothing is run or written."""
        whole = [cell for name in names for cell in cells(name)]
        found = keep_only(whole, only)
        kept = tuple(name for name in names if any(cell.table == name for cell in found))
        jobs = make_jobs(found, seeds, scale, Folders(out))
        return Experiment(kept, found, jobs, tuple(seeds), scale, out, Known(known))

    def to_run(self) -> list[Job]:
        """The runs that are not finished and whose data is given."""
        have = {pair: job for pair, job in self.jobs.items() if pair[0].dataset in self.scale.data}
        if not have:
            needed = sorted({setting.dataset.partition("-")[0] for setting, _ in self.jobs})
            words = " ".join(f"--dataset {name}=PATH" for name in needed)
            raise DertsError(
                f"no data for these cells: add {words} (stores that derts data prepare wrote), or "
                "--dataset glyphs for a small run on built-in data"
            )
        lacking = {
            job.folder
            for cell, job in self.wanted()
            if not point_file(job.folder, point(job.config, cell.fraction)).exists()
            and not self.is_known(cell, job)
        }
        return [job for job in to_run(have) if job.folder in lacking]

    def wanted(self) -> list[tuple[Cell, Job]]:
        """Every cell with each of the runs that it is the mean of."""
        return [
            (cell, job)
            for cell in self.cells
            for (setting, _), job in self.jobs.items()
            if setting == cell.setting
        ]

    def is_known(self, cell: Cell, job: Job) -> bool:
        """Whether a result file tells what a cell needs of a run: never pictures."""
        return cell.table not in DRAWN and self.known.of(cell, job) is not None

    def told_of_known(self) -> str:
        """How much of what is asked for result files tell."""
        wanted = self.wanted()
        found = sum(self.is_known(cell, job) for cell, job in wanted)
        text = f"--known has {found} of {len(wanted)} results"
        if found:
            return text
        return f"{text}: its own may be of another --preset, --updates-scale, --dataset or recipe"

    def measured(self) -> tuple[dict[tuple[Setting, int], Job], Outcomes]:
        """The runs of the named tables and of random sampling beside them, and what they hold."""
        whole = with_references([cell for name in self.names for cell in cells(name)])
        jobs = measured_jobs(whole, self.seeds, self.scale, Folders(self.out), self.known)
        return jobs, collect(whole, jobs, self.known)

    def plan(self, device: str) -> list[Planned]:
        """Every cell with its state and estimated time on a device."""
        import torch

        kind, _, _ = device.partition(":")
        accelerator = torch.cuda.get_device_name(device) if kind == "cuda" else "none"
        speeds = Speeds(self.out, kind, accelerator)
        return plan(self.cells, self.jobs, speeds, self.scale.data, self.is_known)

    def write_reports(self, results: Path | None) -> list[Path]:
        """Print reports of the cells asked for; write those of the whole tables.

        They are written as Markdown, HTML and, unless they come from `results`, as JSON. Returns
        the files written.
        """
        if results is not None:
            check_results(results, self.names, self.scale)
        folder = self.out / "report"
        folder.mkdir(parents=True, exist_ok=True)
        jobs, held = self.measured() if results is None else ({}, {})
        written: list[Path] = []
        for name in self.names:
            asked = [cell for cell in self.cells if cell.table == name]
            file = result_file(folder, name, self.scale)
            if results is None:
                written += keep_what_is_lost(file, held)
                save_outcomes(file, name, with_references(cells(name)), held, self.scale.notes())
                written.append(file)
                whole = file
            else:
                whole = result_file(results, name, self.scale)
                if not whole.is_file():
                    print_report(_report(name, asked, {}, [f"There is no {whole}."]))
                    continue
            print_report(read_report(whole, asked))
            report = read_report(whole)
            for suffix, text in ((".md", markdown(report)), (".html", as_html(report))):
                write_atomically(file.with_suffix(suffix), text.encode())
                written.append(file.with_suffix(suffix))
            written += draw_figures(name, jobs, file, None if results is None else whole)
        return written


def check_results(results: Path, names: Sequence[str], scale: Scale) -> None:
    """At least one of the named tables must have a file among results; else say what is there."""
    if any(result_file(results, name, scale).is_file() for name in names):
        return
    there = [path.name for path in results.glob("reproduce-*.json") if "curves" not in path.name]
    hint = (
        f"there are {', '.join(sorted(there))} (-x0.5: add --updates-scale 0.5; -augment: add "
        "--preset augment)"
        if there
        else "name the folder that such files lie in, or leave out --from"
    )
    wanted = ", ".join(result_file(results, name, scale).name for name in names)
    raise DertsError(f"no results at {results}: it has no {wanted}; {hint}")


def read_report(path: Path, asked: Sequence[Cell] | None = None) -> Report:
    """The report of a table from the JSON file that a run of the grid wrote; all cells or some."""
    name, outcomes, notes = load_outcomes(path)
    return _report(name, cells(name) if asked is None else asked, outcomes, notes)


def _report(name: str, found: Sequence[Cell], outcomes: Outcomes, notes: Sequence[str]) -> Report:
    return make_report(name, read_recipe(name)["title"], found, outcomes, notes)
