"""What belongs to a name beside its table: figure2's curves, the case study's pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from derts.paper.job import Job
from derts.paper.recipe import Setting

DRAWN = ("figure2", "case-study")
"""Names of which there are pictures, made from run folders."""


def draw_figures(
    name: str, jobs: Mapping[tuple[Setting, int], Job], file: Path, source: Path | None
) -> list[Path]:
    """Draw from runs, or from results at `source` where given; the files written.

    `file` and `source` are a table's JSON files: pictures and curves lie beside them.
    """
    if name == "figure2":
        from derts.paper.curves import collect_curves, draw_curves, load_curves, save_curves

        curves, picture = beside(file, "-curves.json"), file.with_suffix(".png")
        if source is not None:
            found = load_curves(beside(source, "-curves.json"))
        else:
            found = collect_curves(jobs)
        if not found:
            print(f"no {picture.name}: there are no runs of figure2 to draw it from")
            return []
        if source is None:
            save_curves(found, curves)
        draw_curves(found, picture)
        return [picture] if source is not None else [curves, picture]
    if name == "case-study" and source is None:
        from derts.paper.case_study import draw_case_studies

        return draw_case_studies(jobs)
    return []


def beside(file: Path, ending: str) -> Path:
    """The name of a file that belongs to another.

    >>> beside(Path("results/reproduce-figure2.json"), "-curves.json").name
    'reproduce-figure2-curves.json'
    """
    return file.with_name(file.stem + ending)
