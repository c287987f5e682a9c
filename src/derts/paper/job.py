"""From a setting and a seed to a training run: its config, its folder, what it is known by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from derts.config import HardwareConfig, StrategyConfig, TrainConfig
from derts.config_file import apply_presets, as_values, with_values
from derts.errors import DertsError
from derts.paper.numbers import class_list
from derts.paper.recipe import Cell, Setting, read_recipe
from derts.paper.scale import Scale
from derts.training.run_folder import AS_IT_WAS, Run
from derts.training.run_folder import point_file as point_file


@dataclass(frozen=True)
class Job:
    """A training run to be done up to an update; picklable."""

    setting: Setting
    config: TrainConfig
    folder: Path
    warmup: Path
    until: int
    points: tuple[int, ...]

    def __str__(self) -> str:
        glyphs = "glyphs for " if self.config.data == "glyphs" else ""
        return f"{glyphs}{self.setting}, seed {self.config.seed}"


def make_config(setting: Setting, seed: int, scale: Scale) -> TrainConfig:
    """The config of a run, every value from the recipes.

        >>> from derts.paper.numbers import class_list
    from derts.paper.recipe import cells
        >>> config = make_config(cells("table4")[0].setting, 0, Scale({}))
        >>> config.updates, config.strategy.warmup, config.tasks.swap_rate
        (12000, 500, 3.02)
    """
    common = read_recipe("common")
    strategy = common["strategies"][setting.strategy]
    noise = str(setting.noise)
    config = with_values(TrainConfig(), common["run"], "common.toml")
    config = with_values(config, common["learners"][setting.learner], "common.toml")
    if setting.classes:
        config = with_values(config, common["few_classes"], "common.toml")
    if setting.noise:
        config = with_values(config, common["noisy"], "common.toml")
    presets = strategy.get("presets", [])
    if setting.noise:
        presets = strategy.get("noisy_presets", presets)
    of_classes = strategy.get("presets_of_classes", {})
    config = apply_presets(of_classes.get(str(setting.classes), presets), config)
    chosen: dict[str, Any] = {**strategy.get("values", {}), "ratio": setting.ratio}
    if not setting.weights:
        chosen["weights"] = "none"
    if setting.selects:
        chosen["select"] = setting.selects
    updates = max(1, round(scale.updates * setting.updates))
    warmup = round(scale.updates * common["warmup"][noise][setting.learner])
    values: dict[str, Any] = {
        "data": scale.data.get(setting.dataset, setting.dataset),
        "seed": seed,
        "updates": updates,
        "validate_every": max(1, round(updates / common["validations"])),
        "model": {"backbone": setting.backbone},
        "tasks": {
            "way": setting.way,
            "shot": setting.shot,
            "classes": list(class_list(setting.classes)) if setting.classes else [],
            **common["noise"][noise],
        },
        "strategy": {**chosen, "warmup": warmup},
    }
    config = with_values(config, values, "recipe")
    if scale.glyphs:
        config = with_values(config, common["glyphs"], "common.toml")
        names = _characters(setting.classes)
        config = replace(config, tasks=replace(config.tasks, classes=names))
    return _with_presets(config, scale.presets).resolved()


def _with_presets(config: TrainConfig, names: Sequence[str]) -> TrainConfig:
    """Presets on top, unless they would make another experiment of it."""
    changed = apply_presets(names, config)
    may_turn = replace(config, tasks=replace(config.tasks, rotated=changed.tasks.rotated))
    for what in ("data", "tasks", "updates", "strategy"):
        if getattr(changed, what) != getattr(may_turn, what):
            raise DertsError(
                f"--preset {' '.join(names)} changes {what}, which the recipes decide: use presets "
                "for hardware, images, model, learner or optimiser, such as gpu and augment"
            )
    return changed


@cache
def _characters(count: int) -> tuple[str, ...]:
    if not count:
        return ()
    from derts.data import glyphs

    return glyphs()["train"].class_names[:count]


def identity(config: TrainConfig, dataset: str) -> str:
    """What a run's numbers depend on, as text; where and on what it ran is left out."""
    config = config.resolved()
    strategy = config.strategy
    if strategy.name in ("random", "us", "ats"):
        strategy = _without_a_choice(strategy)
    neutral = replace(
        config,
        data=dataset,
        strategy=strategy,
        hardware=HardwareConfig(precision=config.hardware.precision),
        validate_every=config.validate_every if config.evaluation.weights == "best" else 0,
        log_every=1,
        checkpoint_every=1,
    )
    return json.dumps(as_values(neutral), sort_keys=True)


def _without_a_choice(strategy: StrategyConfig) -> StrategyConfig:
    """Without what matters to derts alone; digests are those from before there was `selects`."""
    return StrategyConfig(name=strategy.name, warmup=strategy.warmup)


class Folders:
    """Finds and names run folders under one folder.

    A run is recognised by its config as the present code reads it, not by its name, so that a
    setting that is added later does not orphan the runs made before. Of two folders of one run,
    such as two machines leave, the one that got further counts, whatever it measured.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.known: dict[str, Path] = {}
        self.seeds: set[int] = set()
        for file in sorted(out.glob("*/*/config.toml")):
            folder = file.parent
            try:
                config = Run.open(folder).config
            except DertsError:
                continue  # of a version whose settings are no longer known
            self.seeds.add(config.seed)
            key = identity(config, folder.parent.name)
            twin = self.known.get(key)
            if twin is None or _how_far(folder) > _how_far(twin):
                self.known[key] = folder

    def of(self, setting: Setting, config: TrainConfig, dataset: str) -> Path:
        """The folder of a run, whether it is there yet or not."""
        key = identity(config, dataset)
        if key not in self.known:
            noise = f"-noise{100 * setting.noise:.0f}" if setting.noise else ""
            classes = f"-{setting.classes}classes" if setting.classes else ""
            name = (
                f"{setting.way}way{setting.shot}shot{classes}{noise}-{setting.backbone}"
                f"-{setting.learner}-{setting.strategy}-{config.updates}-seed{config.seed}"
                f"-{_digest(key)}"
            )
            self.known[key] = self.out / dataset / name
        return self.known[key]

    def warmup(self, config: TrainConfig, dataset: str) -> Path:
        """Where runs that differ in nothing but the strategy share the end of their warm-up."""
        strategy = _without_a_choice(StrategyConfig(warmup=config.strategy.warmup))
        key = identity(replace(config, strategy=strategy), dataset)
        return self.out / "warm-ups" / dataset / _digest(key)


def _digest(key: str) -> str:
    """Of an identity; settings that are as they were before there were such leave it alone."""
    was = as_values(AS_IT_WAS)
    told = {
        name: {k: v for k, v in value.items() if v != was[name].get(k)}
        if isinstance(value, dict)
        else value
        for name, value in json.loads(key).items()
    }
    text = json.dumps({name: value for name, value in told.items() if value != {}}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def point(config: TrainConfig, fraction: float) -> int:
    """The update at which a share of the training is done, at least 1."""
    return max(1, round(fraction * config.updates))


def make_jobs(
    found: Sequence[Cell], seeds: Sequence[int], scale: Scale, folders: Folders
) -> dict[tuple[Setting, int], Job]:
    """The runs that cells need, by setting and seed; settings may share a run.

    Each is to be trained as far as its last cell needs. The order is that of the cells, but seed
    by seed, and US and ATS after the others, so that comparisons are whole as early as may be.
    """
    fractions = read_recipe("common")["points"]
    furthest: dict[Setting, float] = {}
    for cell in found:
        furthest[cell.setting] = max(cell.fraction, furthest.get(cell.setting, 0.0))
    jobs = {}
    pairs = [(setting, seed) for seed in seeds for setting in furthest]
    for setting, seed in sorted(pairs, key=lambda pair: pair[0].strategy in ("us", "ats")):
        config = make_config(setting, seed, scale)
        dataset = "glyphs" if scale.glyphs else setting.dataset
        jobs[setting, seed] = Job(
            setting,
            config,
            folders.of(setting, config, dataset),
            folders.warmup(config, dataset),
            point(config, furthest[setting]),
            tuple(point(config, fraction) for fraction in fractions),
        )
    return jobs


def to_run(jobs: Mapping[tuple[Setting, int], Job]) -> list[Job]:
    """Each run once, to the furthest update asked for, without those that are there already."""
    by_folder: dict[Path, Job] = {}
    for job in jobs.values():
        other = by_folder.get(job.folder)
        by_folder[job.folder] = job if other is None or job.until > other.until else other
    return [job for job in by_folder.values() if not point_file(job.folder, job.until).exists()]


def _how_far(folder: Path) -> tuple[int, int]:
    return measured_to(folder), stands_at(folder)


def stands_at(folder: Path) -> int:
    """The update of a run's last checkpoint; 0 where there is none."""
    saved = sorted((folder / "checkpoints").glob("update-*.ckpt"))
    return int(saved[-1].stem.removeprefix("update-")) if saved else 0


def measured_to(folder: Path) -> int:
    """The last update at which a run was measured; 0 where it was not.

    >>> measured_to(Path("nowhere"))
    0
    """
    names = (file.stem.removeprefix("result-") for file in folder.glob("result-*.json"))
    return max((int(name) for name in names if name.isdigit()), default=0)
