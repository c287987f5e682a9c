"""figure2, the training curves with noisy tasks, and the case study's pictures of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from derts.reproduce.job import Job
from derts.reproduce.recipe import Setting


def draw_figures(
    name: str, jobs: Mapping[tuple[Setting, int], Job], folder: Path, stem: str
) -> list[Path]:
    """The pictures that belong to a name, drawn from finished runs; the files written."""
    if name == "figure2":
        from derts.reproduce.curves import draw_curves

        return draw_curves(jobs, folder / f"{stem}.png")
    if name == "case-study":
        from derts.reproduce.case_study import draw_case_studies

        return draw_case_studies(jobs)
    return []
