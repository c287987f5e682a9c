"""The runs that cells need: their folders, what is there already, what is left and how long."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from derts.config import TrainConfig
from derts.config_file import as_values
from derts.paper.cells import Cell, Setting, read_recipe
from derts.paper.recipes import Scale, make_config, run_key, warmup_key


@dataclass(frozen=True)
class GridRun:
    """A training run to be done up to an update; picklable.

    points  the updates at which it is evaluated
    warmup  the folder in which runs that differ in the strategy alone share their warm-up
    """

    setting: Setting
    config: TrainConfig
    folder: Path
    warmup: Path
    until: int
    points: tuple[int, ...]

    def __str__(self) -> str:
        glyphs = "glyphs for " if self.config.data == "glyphs" else ""
        return f"{glyphs}{self.setting}, seed {self.config.seed}"

    @property
    def dataset(self) -> str:
        """The data set's name, wherever it lies."""
        return self.folder.parent.name

    def result_at(self, fraction: float) -> Path:
        """Where the run keeps what was measured after a share of its updates."""
        return point_file(self.folder, point(self.config, fraction))


Runs = Mapping[tuple[Setting, int], GridRun]
"""By setting and seed."""


def point(config: TrainConfig, fraction: float) -> int:
    """The update at which a share of the training is done, at least 1."""
    return max(1, round(fraction * config.updates))


def point_file(folder: Path, update: int) -> Path:
    """Where a run keeps what was measured at an update."""
    return folder / f"result-{update:07d}.json"


def make_runs(found: Sequence[Cell], seeds: Sequence[int], scale: Scale, out: Path) -> Runs:
    """The runs that cells need, by setting and seed; settings may share a run.

    Each is to be trained as far as its last cell needs. The order is that of the cells, but seed
    by seed, and US and ATS after the others, so that comparisons are whole as early as may be.
    """
    fractions = read_recipe("common")["points"]
    furthest: dict[Setting, float] = {}
    for cell in found:
        furthest[cell.setting] = max(cell.fraction, furthest.get(cell.setting, 0.0))
    configs = {setting: make_config(setting, 0, scale) for setting in furthest}
    pairs = [(setting, seed) for seed in seeds for setting in furthest]
    runs = {}
    for setting, seed in sorted(pairs, key=lambda pair: pair[0].strategy in ("us", "ats")):
        config = replace(configs[setting], seed=seed)
        dataset = "glyphs" if scale.glyphs else setting.dataset
        runs[setting, seed] = GridRun(
            setting,
            config,
            out / dataset / _folder_name(setting, config, dataset),
            out / "warm-ups" / dataset / warmup_key(config, dataset),
            point(config, furthest[setting]),
            tuple(point(config, fraction) for fraction in fractions),
        )
    return runs


def _folder_name(setting: Setting, config: TrainConfig, dataset: str) -> str:
    """Words for people, and a digest that tells runs apart."""
    noise = f"-noise{100 * setting.noise:.0f}" if setting.noise else ""
    classes = f"-{setting.classes}classes" if setting.classes else ""
    return (
        f"{setting.way}way{setting.shot}shot{classes}{noise}-{setting.backbone}"
        f"-{setting.learner}-{setting.strategy}-{config.updates}-seed{config.seed}"
        f"-{run_key(config, dataset)}"
    )


def seeds_in(out: Path) -> set[int]:
    """The seeds of the runs in a folder.

    >>> seeds_in(Path("nowhere"))
    set()
    """
    names = (re.search(r"-seed(\d+)-\w+$", folder.name) for folder in out.glob("*/*"))
    return {int(found[1]) for found in names if found}


def to_run(runs: Runs) -> list[GridRun]:
    """Each run once, to the furthest update asked for, without those that are there already."""
    by_folder: dict[Path, GridRun] = {}
    for run in runs.values():
        other = by_folder.get(run.folder)
        by_folder[run.folder] = run if other is None or run.until > other.until else other
    return [run for run in by_folder.values() if not point_file(run.folder, run.until).exists()]


@dataclass(frozen=True)
class PlannedCell:
    """A cell with its state and the seconds that its seeds still need."""

    cell: Cell
    updates: int
    state: str
    seconds: float
    measured: bool


class Speeds:
    """Seconds per update, evaluations included: those of runs in a folder that were made on the
    same accelerator, else assumed."""

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

    def of(self, run: GridRun) -> tuple[float, bool]:
        """Seconds per update, and whether they were measured."""
        found = self.measured.get(_like(as_values(run.config), run.dataset))
        if found:
            return sum(found) / len(found), True
        assumed = read_recipe("common")["assumed_seconds"]
        kind = "glyphs" if run.dataset == "glyphs" else self.kind
        base = assumed[kind][run.setting.backbone]
        return base * assumed["strategy_factor"][run.setting.strategy], False


def _like(config: Mapping[str, Any], dataset: str) -> tuple[Any, ...]:
    """Equal for runs that take about the same time per update."""
    model, strategy = config["model"], config["strategy"]
    return (
        dataset == "glyphs", config["learner"]["name"], config["meta_batch"],
        config["tasks"]["shot"], model["backbone"], model["width"], strategy["name"],
        strategy["estimate"] if strategy["name"] == "derts" else None,
        config["hardware"]["precision"],
    )  # fmt: skip


def plan(
    found: Sequence[Cell],
    runs: Runs,
    speeds: Speeds,
    data: Mapping[str, str],
    is_known: Callable[[Cell, GridRun], bool] = lambda cell, run: False,
) -> list[PlannedCell]:
    """Every cell with what it still needs.

    A run's time is counted once: in the first cell that needs it, from where the run will stand
    then, so that the seconds add up.
    """
    reached: dict[Path, int] = {}
    planned = []
    for cell in found:
        mine = [run for (setting, _), run in runs.items() if setting == cell.setting]
        updates = point(mine[0].config, cell.fraction)
        todo = [
            r for r in mine if not r.result_at(cell.fraction).exists() and not is_known(cell, r)
        ]
        work, shared, measured = 0.0, 0, True
        for run in todo:
            seconds, measured = speeds.of(run)
            before = reached.setdefault(run.folder, _stands_at(run.folder))
            shared += before >= updates
            work += seconds * max(0, updates - before)
            reached[run.folder] = max(before, updates)
        state = f"{len(todo)} of {len(mine)} seeds to run" if todo else "finished"
        if todo and shared == len(todo):
            state += ", in a run counted above"
        if todo and cell.setting.dataset not in data:
            state += f"; needs --dataset {cell.setting.dataset.partition('-')[0]}=PATH"
        planned.append(PlannedCell(cell, updates, state, work, measured))
    return planned


def _stands_at(folder: Path) -> int:
    """The update of a run's last checkpoint; 0 where there is none."""
    saved = sorted((folder / "checkpoints").glob("update-*.ckpt"))
    return int(saved[-1].stem.removeprefix("update-")) if saved else 0


def plan_rows(planned: Sequence[PlannedCell]) -> list[tuple[str, ...]]:
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
