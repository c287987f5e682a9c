"""What is still to be done, and how long it should take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from derts.reproduce.job import Job, Scale, point, point_file
from derts.reproduce.outcomes import Outcomes
from derts.reproduce.recipe import Cell, Setting, read_recipe


@dataclass(frozen=True)
class Planned:
    """A cell with its state and the seconds that its seeds still need."""

    cell: Cell
    updates: int
    state: str
    seconds: float
    measured: bool


class Speeds:
    """Seconds per update, evaluations included: measured on a like machine, else assumed."""

    def __init__(self, outcomes: Outcomes, scale: Scale, kind: str, accelerator: str) -> None:
        self.glyphs, self.kind = scale.glyphs, "cuda" if kind == "cuda" else "cpu"
        self.measured: dict[tuple[str, ...], list[float]] = {}
        for (setting, _), seeds in outcomes.items():
            for outcome in seeds.values():
                if outcome.machine.get("accelerator", "none") == accelerator:
                    self.measured.setdefault(_like(setting), []).append(outcome.seconds)

    def of(self, setting: Setting) -> tuple[float, bool]:
        """Seconds per update, and whether they were measured."""
        found = self.measured.get(_like(setting))
        if found:
            return sum(found) / len(found), True
        assumed = read_recipe("common")["assumed_seconds"]
        base = assumed["glyphs" if self.glyphs else self.kind][setting.backbone]
        return base * assumed["strategy_factor"][setting.strategy], False


def _like(setting: Setting) -> tuple[str, ...]:
    """Settings that take about the same time per update."""
    return setting.learner, setting.backbone, setting.strategy, str(setting.shot)


def plan(
    found: Sequence[Cell],
    jobs: Mapping[tuple[Setting, int], Job],
    speeds: Speeds,
    data: Mapping[str, str],
) -> list[Planned]:
    """Every cell with what it still needs.

    A run's time is counted once: in the first cell that needs it, from where the run will stand
    then, so that the seconds add up.
    """
    reached: dict[Path, int] = {}
    planned = []
    for cell in found:
        seconds, measured = speeds.of(cell.setting)
        work, todo, shared, seeds, updates = 0.0, 0, 0, 0, 0
        for (setting, _), job in jobs.items():
            if setting != cell.setting:
                continue
            seeds += 1
            updates = point(job.config, cell.fraction)
            if point_file(job.folder, updates).is_file():
                continue
            todo += 1
            before = reached.setdefault(job.folder, _stands_at(job))
            shared += before >= updates
            work += seconds * max(0, updates - before)
            reached[job.folder] = max(before, updates)
        state = _state(seeds, todo, shared)
        if todo and cell.setting.dataset not in data:
            state = f"needs --dataset {cell.setting.dataset.partition('-')[0]}=PATH"
        planned.append(Planned(cell, updates, state, work, measured))
    return planned


def _stands_at(job: Job) -> int:
    saved = sorted((job.folder / "checkpoints").glob("update-*.ckpt"))
    return int(saved[-1].stem.removeprefix("update-")) if saved else 0


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
