"""What was measured of cells: from run folders, and from result files of folders that are gone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from derts.config import Precision
from derts.errors import DertsError
from derts.paper.job import Folders, Job, make_jobs, measured_to, point, point_file
from derts.paper.known import Known
from derts.paper.outcomes import Outcome, Outcomes
from derts.paper.recipe import Cell, Setting
from derts.paper.scale import Scale


def measured_jobs(
    found: Sequence[Cell], seeds: Sequence[int], scale: Scale, folders: Folders, known: Known
) -> dict[tuple[Setting, int], Job]:
    """The runs of cells for a report: with every seed that is there, asked for or not.

    Where none of them was measured in the precision asked for, those in the other count: a report
    is of what is there. Precisions are never mixed.
    """
    every = sorted({*seeds, *folders.seeds, *known.seeds})
    asked = make_jobs(found, every, scale, folders)
    if _any_measured(asked, known):
        return asked
    for precision in get_args(Precision):
        other = {pair: _in_precision(job, precision, folders) for pair, job in asked.items()}
        if _any_measured(other, known):
            return other
    return asked


def _any_measured(jobs: Mapping[tuple[Setting, int], Job], known: Known) -> bool:
    return any(measured_to(job.folder) or known.any_of(job) for job in jobs.values())


def _in_precision(job: Job, precision: Precision, folders: Folders) -> Job:
    hardware = replace(job.config.hardware, precision=precision)
    config = replace(job.config, hardware=hardware)
    folder = folders.of(job.setting, config, job.folder.parent.name)
    return replace(job, config=config, folder=folder)


def collect(
    found: Sequence[Cell], jobs: Mapping[tuple[Setting, int], Job], known: Known
) -> Outcomes:
    """What run folders hold of some cells and, where they hold nothing, what is known."""
    outcomes: Outcomes = {}
    for cell in found:
        for (setting, seed), job in jobs.items():
            if setting != cell.setting:
                continue
            file = point_file(job.folder, point(job.config, cell.fraction))
            outcome = _read(file, job) if file.is_file() else known.of(cell, job)
            if outcome is not None:
                outcomes.setdefault((setting, cell.fraction), {})[seed] = outcome
    return outcomes


def _read(file: Path, job: Job) -> Outcome:
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
        evaluation = result["config"]["evaluation"]
        questions = result["config"]["tasks"]["way"] * evaluation["query"]
        return Outcome(
            result["seed"],
            result["updates"],
            tuple(round(value * questions / 100) for value in result["accuracies"]),
            questions,
            result["seconds_per_update"],
            sum(result["seconds"].values()) / result["updates"],
            result["machine"],
            {**result["config"], "data": job.folder.parent.name},
            result["code"],
            result.get("weights_of_update"),
            result.get("random_share", result.get("random_rounds")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DertsError(
            f"{file} is damaged ({type(error).__name__}: {error}): remove {job.folder}, run again"
        ) from None
