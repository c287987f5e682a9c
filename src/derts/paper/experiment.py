"""What one command asks for: names, cells, runs; its plan, its reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from derts.errors import DertsError
from derts.files import write_atomically
from derts.paper.cells import Cell, cells, keep_only, with_references
from derts.paper.collect import (
    KnownResults,
    Results,
    collect,
    keep_what_is_lost,
    result_file,
    save_results,
)
from derts.paper.figures import DRAWN, draw_figures
from derts.paper.recipes import Scale
from derts.paper.rendering import as_html, markdown, print_report
from derts.paper.report import make_report, read_report
from derts.paper.runs import GridRun, PlannedCell, Runs, Speeds, make_runs, plan, seeds_in, to_run


@dataclass(frozen=True, eq=False)
class Experiment:
    """Cells that are asked for, and the runs that they need.

    Reports are of whole tables, with all of their runs that are there already.

    >>> from pathlib import Path
    >>> asked = Experiment.make(["table3", "table8"], ["learner=anil", "shot=1"], range(3),
    ...                         Scale({}), Path("runs"))
    >>> len(asked.cells), len(asked.runs)
    (10, 30)
    """

    names: tuple[str, ...]
    cells: tuple[Cell, ...]
    runs: Runs
    seeds: tuple[int, ...]
    scale: Scale
    out: Path
    known: KnownResults = field(default_factory=KnownResults)

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
        found = keep_only([cell for name in names for cell in cells(name)], only)
        kept = tuple(name for name in names if any(cell.table == name for cell in found))
        runs = make_runs(found, seeds, scale, out)
        return Experiment(kept, found, runs, tuple(seeds), scale, out, KnownResults(known))

    def to_run(self) -> list[GridRun]:
        """The runs that are not finished and whose data is given."""
        have = {pair: run for pair, run in self.runs.items() if pair[0].dataset in self.scale.data}
        if not have:
            needed = sorted({setting.dataset.partition("-")[0] for setting, _ in self.runs})
            words = " ".join(f"--dataset {name}=PATH" for name in needed)
            raise DertsError(
                f"no data for these cells: add {words} (stores that derts data prepare wrote), or "
                "--dataset glyphs for a small run on built-in data"
            )
        lacking = {
            run.folder
            for cell, run in self.wanted()
            if not run.result_at(cell.fraction).exists() and not self.is_known(cell, run)
        }
        return [run for run in to_run(have) if run.folder in lacking]

    def wanted(self) -> list[tuple[Cell, GridRun]]:
        """Every cell with each of the runs that it is the mean of."""
        return [
            (cell, run)
            for cell in self.cells
            for (setting, _), run in self.runs.items()
            if setting == cell.setting
        ]

    def is_known(self, cell: Cell, run: GridRun) -> bool:
        """Whether a result file tells what a cell needs of a run: never pictures."""
        return cell.table not in DRAWN and self.known.of(cell, run) is not None

    def told_of_known(self) -> str:
        """How much of what is asked for result files tell."""
        wanted = self.wanted()
        found = sum(self.is_known(cell, run) for cell, run in wanted)
        text = f"--known has {found} of {len(wanted)} results"
        if found:
            return text
        return f"{text}: its own may be of another --preset, --updates-scale, --dataset or recipe"

    def plan(self, device: str) -> list[PlannedCell]:
        """Every cell with its state and estimated time on a device."""
        import torch

        kind, _, _ = device.partition(":")
        accelerator = torch.cuda.get_device_name(device) if kind == "cuda" else "none"
        speeds = Speeds(self.out, kind, accelerator)
        return plan(self.cells, self.runs, speeds, self.scale.data, self.is_known)

    def measured(self) -> tuple[Runs, Results]:
        """The runs of the named tables and of random sampling beside them, and what they hold.

        With every seed that is there, asked for or not.
        """
        whole = with_references([cell for name in self.names for cell in cells(name)])
        seeds = sorted({*self.seeds, *seeds_in(self.out), *self.known.seeds})
        runs = make_runs(whole, seeds, self.scale, self.out)
        return runs, collect(whole, runs, self.known)

    def write_reports(self, source: Path | None) -> list[Path]:
        """Print reports of the cells asked for; write those of the whole tables.

        They are written as Markdown, HTML and, unless they come from files in `source`, as JSON.
        Returns the files written.
        """
        if source is not None:
            self._check_source(source)
        folder = self.out / "report"
        folder.mkdir(parents=True, exist_ok=True)
        runs, held = self.measured() if source is None else ({}, {})
        written: list[Path] = []
        for name in self.names:
            asked = [cell for cell in self.cells if cell.table == name]
            file = whole = result_file(folder, name, self.scale)
            if source is None:
                written += keep_what_is_lost(file, held)
                save_results(file, name, with_references(cells(name)), held, self.scale.notes())
                written.append(file)
            else:
                whole = result_file(source, name, self.scale)
                if not whole.is_file():
                    print_report(make_report(name, asked, {}, [f"There is no {whole}."]))
                    continue
            print_report(read_report(whole, asked))
            report = read_report(whole)
            for suffix, text in ((".md", markdown(report)), (".html", as_html(report))):
                write_atomically(file.with_suffix(suffix), text.encode())
                written.append(file.with_suffix(suffix))
            written += draw_figures(name, runs, file, None if source is None else whole)
        return written

    def _check_source(self, source: Path) -> None:
        """At least one of the named tables must have a file there; else say what is there."""
        files = [result_file(source, name, self.scale) for name in self.names]
        if any(file.is_file() for file in files):
            return
        there = [file.name for file in source.glob("reproduce-*.json") if "curves" not in file.name]
        hint = (
            f"there are {', '.join(sorted(there))} (-x0.5: add --updates-scale 0.5; -augment: add "
            "--preset augment)"
            if there
            else "name the folder that such files lie in, or leave out --from"
        )
        wanted = ", ".join(file.name for file in files)
        raise DertsError(f"no results at {source}: it has no {wanted}; {hint}")
