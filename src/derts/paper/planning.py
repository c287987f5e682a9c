"""What is still to be done, and how long it should take."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from derts.config_file import as_values
from derts.paper.job import Job, point, point_file, stands_at
from derts.paper.recipe import Cell, Setting, read_recipe


@dataclass(frozen=True)
class Planned:
    """A cell with its state and the seconds that its seeds still need."""

    cell: Cell
    updates: int
    state: str
    seconds: float
    measured: bool


class Speeds:
    """Seconds per update, evaluations included: of all runs in a folder that were made on a like
    machine, else assumed."""

    def __init__(self, out: Path, kind: str, accelerator: str) -> None:
        self.kind = "cuda" if kind == "cuda" else "cpu"
        self.measured: dict[tuple[Any, ...], list[float]] = {}
        for file in out.glob("*/*/result-*.json"):
            try:
                result = json.loads(file.read_text(encoding="utf-8"))
                seconds = sum(result["seconds"].values()) / result["updates"]
                key = _like(result["config"], file.parent.parent.name)
                there = result["machine"].get("accelerator", "none")
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # damaged: it will be reported when it is needed
            if there == accelerator:
                self.measured.setdefault(key, []).append(seconds)

    def of(self, job: Job) -> tuple[float, bool]:
        """Seconds per update, and whether they were measured."""
        dataset = job.folder.parent.name
        found = self.measured.get(_like(as_values(job.config), dataset))
        if found:
            return sum(found) / len(found), True
        assumed = read_recipe("common")["assumed_seconds"]
        kind = "glyphs" if dataset == "glyphs" else self.kind
        base = assumed[kind][job.setting.backbone]
        return base * assumed["strategy_factor"][job.setting.strategy], False


def _like(config: dict[str, Any], dataset: str) -> tuple[Any, ...]:
    """Equal for runs that take about the same time per update."""
    model, strategy, hardware = config["model"], config["strategy"], config["hardware"]
    return (
        dataset == "glyphs",
        config["learner"]["name"],
        config["meta_batch"],
        config["tasks"]["shot"],
        model["backbone"],
        model["width"],
        strategy["name"],
        strategy["estimate"] if strategy["name"] == "derts" else None,
        hardware["precision"],
    )


def plan(
    found: Sequence[Cell],
    jobs: Mapping[tuple[Setting, int], Job],
    speeds: Speeds,
    data: Mapping[str, str],
    is_known: Callable[[Cell, Job], bool] = lambda cell, job: False,
) -> list[Planned]:
    """Every cell with what it still needs.

    A run's time is counted once: in the first cell that needs it, from where the run will stand
    then, so that the seconds add up.
    """
    reached: dict[Path, int] = {}
    planned = []
    for cell in found:
        work, todo, shared, seeds, updates, measured = 0.0, 0, 0, 0, 0, True
        for (setting, _), job in jobs.items():
            if setting != cell.setting:
                continue
            seeds += 1
            updates = point(job.config, cell.fraction)
            if point_file(job.folder, updates).is_file() or is_known(cell, job):
                continue
            todo += 1
            seconds, measured = speeds.of(job)
            before = reached.setdefault(job.folder, stands_at(job.folder))
            shared += before >= updates
            work += seconds * max(0, updates - before)
            reached[job.folder] = max(before, updates)
        state = _state(seeds, todo, shared)
        if todo and cell.setting.dataset not in data:
            state += f"; needs --dataset {cell.setting.dataset.partition('-')[0]}=PATH"
        planned.append(Planned(cell, updates, state, work, measured))
    return planned


def _state(seeds: int, todo: int, shared: int) -> str:
    if not todo:
        return "finished"
    words = f"{todo} of {seeds} seeds to run"
    if shared == todo:
        return f"{words}, in a run counted above"
    return words


def plan_rows(planned: Sequence[Planned]) -> list[tuple[str, ...]]:
    """The plan as rows of text, a heading first."""
    rows: list[tuple[str, ...]] = [("cell", "updates", "estimated time", "state")]
    for item in planned:
        time = duration(item.seconds) if item.seconds else ""
        time += " (assumed)" if item.seconds and not item.measured else ""
        name = f"{item.cell.table:<10}  {item.cell.setting}, at {100 * item.cell.fraction:g}%"
        rows.append((name, str(item.updates), time, item.state))
    return rows


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(45), duration(600), duration(7260)
    ('45 s', '10 min', '2.0 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
