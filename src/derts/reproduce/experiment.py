"""What one command asks for: names, cells, runs; its plan, its reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from derts.errors import DertsError
from derts.reproduce.job import Folders, Job, Scale, make_jobs, to_run
from derts.reproduce.outcomes import (
    Outcomes,
    collect,
    load_outcomes,
    result_file,
    save_outcomes,
)
from derts.reproduce.planning import Planned, Speeds, plan
from derts.reproduce.recipe import Cell, Setting, cells, keep_only, read_recipe
from derts.reproduce.report import as_html, make_report, markdown, print_report
from derts.runs import write_atomically


def with_references(found: Sequence[Cell]) -> list[Cell]:
    """Cells, and those of random sampling from which their differences are taken."""
    wanted = {(cell.setting, cell.fraction): cell for cell in found}
    for cell in found:
        baseline = cell.setting.baseline()
        wanted.setdefault((baseline, cell.fraction), replace(cell, setting=baseline, paper=None))
    return list(wanted.values())


@dataclass(frozen=True, eq=False)
class Experiment:
    """Cells by table, and the runs that they need.

    >>> from pathlib import Path
    >>> asked = Experiment.make(["table3", "table8"], ["learner=anil", "shot=1"], range(3),
    ...                         Scale({}), Path("runs"))
    >>> len(asked.cells), len(asked.jobs)
    (10, 30)
    """

    names: tuple[str, ...]
    cells: tuple[Cell, ...]
    jobs: dict[tuple[Setting, int], Job]
    references: dict[tuple[Setting, int], Job]
    scale: Scale
    out: Path

    @staticmethod
    def make(
        names: Sequence[str], only: Sequence[str], seeds: Sequence[int], scale: Scale, out: Path
    ) -> Experiment:
        """Expand recipes; nothing is run or written."""
        found = keep_only([cell for name in names for cell in cells(name)], only)
        kept = tuple(name for name in names if any(cell.table == name for cell in found))
        folders = Folders(out)
        jobs = make_jobs(found, seeds, scale, folders)
        references = make_jobs(with_references(found), seeds, scale, folders)
        return Experiment(kept, found, jobs, references, scale, out)

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
        return to_run(have)

    @cached_property
    def title_of(self) -> dict[str, str]:
        return {name: read_recipe(name)["title"] for name in self.names}

    def outcomes(self) -> Outcomes:
        """What the run folders hold of the cells and of random sampling, run now or earlier."""
        return collect(with_references(self.cells), self.references)

    def plan(self, device: str) -> list[Planned]:
        """Every cell with its state and estimated time on a device."""
        import torch

        kind, _, _ = device.partition(":")
        accelerator = torch.cuda.get_device_name(device) if kind == "cuda" else "none"
        speeds = Speeds(self.outcomes(), self.scale, kind, accelerator)
        return plan(self.cells, self.jobs, speeds, self.scale.data)

    def write_reports(self, results: Path | None) -> list[Path]:
        """Print each report and write it as Markdown, HTML and JSON; the files written."""
        from derts.reproduce.figures import draw_figures

        held = self.outcomes() if results is None else {}
        folder = self.out / "report"
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for name in self.names:
            found = [cell for cell in self.cells if cell.table == name]
            notes = self.scale.notes()
            file = result_file(folder, name, self.scale)
            if results is not None:
                source = result_file(results, name, self.scale)
                held, notes = load_outcomes(source, with_references(found))
            else:
                save_outcomes(file, name, with_references(found), held, notes)
                written.append(file)
            report = make_report(name, self.title_of[name], found, held, notes)
            print_report(report)
            for suffix, text in ((".md", markdown(report)), (".html", as_html(report))):
                write_atomically(file.with_suffix(suffix), text.encode())
                written.append(file.with_suffix(suffix))
            if results is None:
                written += draw_figures(name, self.jobs, folder, file.stem)
        return written
