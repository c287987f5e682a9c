"""The runs that cells need: their folders, what is there already, what is left and how long."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from derts.config import TrainConfig
from derts.files import parse_json
from derts.paper.cells import Cell, Setting, read_recipe
from derts.paper.recipes import Scale, make_config, run_key, warmup_key
from derts.training.run_folder import point_file


@dataclass(frozen=True)
class GridRun:
    """A training run to be done up to update `until` and evaluated at `points`; picklable.

    Runs that differ in the strategy alone share their warm-up in the folder `warmup`.
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
    """The seeds of the runs in a folder."""
    names = (re.search(r"-seed(\d+)-\w+$", folder.name) for folder in out.glob("*/*"))
    return {int(found[1]) for found in names if found}


def to_run(runs: Runs) -> list[GridRun]:
    """Each run once, to the furthest update asked for, without those that are there already."""
    by_folder: dict[Path, GridRun] = {}
    for run in runs.values():
        other = by_folder.get(run.folder)
        by_folder[run.folder] = run if other is None or run.until > other.until else other
    return [run for run in by_folder.values() if not point_file(run.folder, run.until).exists()]


def estimated_seconds(run: GridRun, device: str, accelerator: str) -> tuple[float, str]:
    """Seconds per update, evaluations included, and a word where they are not measured.

    Measured are those of runs of the same name on the same accelerator, whatever seed or length.
    """
    found = []
    name = run.folder.name.partition(f"-{run.config.updates}-seed")[0]
    for file in run.folder.parent.glob(f"{name}-[0-9]*/result-*.json"):
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # told when it is needed
            result = parse_json(file.read_text(encoding="utf-8"))
            if result["machine"].get("accelerator", "none") == accelerator:
                found.append(sum(result["seconds"].values()) / result["updates"])
    if found:
        return sum(found) / len(found), ""
    assumed = read_recipe("common")["assumed_seconds"]
    kind = "glyphs" if run.dataset == "glyphs" else "cuda" if "cuda" in device else "cpu"
    factor = assumed["strategy_factor"][run.setting.strategy]
    return assumed[kind][run.setting.backbone] * factor, " (assumed)"


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(45), duration(600), duration(7260)
    ('45 s', '10 min', '2.0 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
