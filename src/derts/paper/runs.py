"""From settings and seeds to runs: their configs, folders, what is left to do and how long.

Every value of a config is from the recipes.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from derts.config import StrategyConfig, TrainConfig
from derts.config_file import PRESETS, apply_presets, as_values, with_values
from derts.data import open_data
from derts.errors import DertsError
from derts.paper.cells import SHORT_NAMES, Cell, Setting, read_json, read_recipe
from derts.training.run_folder import point_file

READS = {
    "random": ("name", "warmup"),
    "random-votes": ("name", "warmup", "pool", "pool_images", "ratio"),
    "us": ("name", "warmup"),
    "ats": ("name", "warmup"),
}
"""Settings under `strategy` that a strategy reads; one that is not named here reads all."""
WITHOUT_EFFECT = ("hardware", "checkpoint_every", "validate_every")
"""Settings that say where a run is made and what is told of it, not what it is."""


@dataclass(frozen=True)
class Scale:
    """How the runs asked for differ from the recipes.

    Stores by data set name ("glyphs" for all), what updates, warm-up and evaluation points are
    multiplied by, and presets of `derts train` on top.
    """

    data: Mapping[str, str]
    updates: float = 1.0
    presets: tuple[str, ...] = ()

    @property
    def glyphs(self) -> bool:
        return "glyphs" in self.data.values()

    @property
    def suffix(self) -> str:
        """Tells result files of different scales apart."""
        scale = "" if self.updates == 1 else f"-x{self.updates:g}"
        presets = "".join(f"-{name}" for name in self.presets if name != "gpu")
        return f"{'-glyphs' if self.glyphs else ''}{scale}{presets}"

    def notes(self) -> list[str]:
        """What a reader must know, in sentences."""
        found = []
        if self.glyphs:
            what = "Run on the built-in glyphs instead of ImageNet, and smaller"
            found.append(f"{what}: this shows that everything runs, not who is right.")
        if self.updates != 1:
            times = f"{self.updates:g} times the paper's"
            found.append(f"Updates, warm-up and evaluation points are {times}.")
        if self.presets:
            found.append(f"Presets on top of the recipe: {', '.join(self.presets)}.")
        return found


def parse_datasets(words: Sequence[str]) -> dict[str, str]:
    """`mini=PATH`, `tiered=PATH` or `glyphs` as stores by data set name.

    >>> parse_datasets(["mini=stores/mini"])
    {'mini-imagenet': 'stores/mini'}
    """
    if tuple(words) == ("glyphs",):
        return dict.fromkeys(SHORT_NAMES.values(), "glyphs")
    found: dict[str, str] = {}
    for word in words:
        name, _, path = word.partition("=")
        name = SHORT_NAMES.get(name, name)
        if name not in SHORT_NAMES.values() or path in ("", "glyphs"):
            fix = "write mini=PATH, tiered=PATH, or glyphs alone, which stands in for both"
            raise DertsError(f"--dataset {word!r} is not understood: {fix}")
        found[name] = path
    return found


def make_config(setting: Setting, seed: int, scale: Scale) -> TrainConfig:
    """The config of a run.

    >>> from derts.paper.cells import cells
    >>> config = make_config(cells("table4")[0].setting, 0, Scale({}))
    >>> config.updates, config.strategy.warmup, config.tasks.noise
    (12000, 500, 'swap:3.02')
    """
    common = read_recipe("common")
    strategy = common["strategies"][setting.strategy]
    kind = "noisy_presets" if setting.noise and "noisy_presets" in strategy else "presets"
    updates = max(1, round(scale.updates * setting.updates))
    chosen = {**strategy.get("values", {}), "ratio": setting.ratio, "warmup": -1}  # the paper's
    chosen |= {} if setting.weights else {"weights": "none"}
    if setting.select and setting.strategy == "derts":  # else it is the paper's
        chosen["select"] = setting.select
    layers = [
        common["run"],
        common["learners"][setting.learner],
        common["few_classes"] if setting.classes else {},
        common["noisy"] if setting.noise else {},
        # what presets say of the learner would be another experiment
        *({"strategy": PRESETS[name]["strategy"]} for name in strategy.get(kind, [])),
        {
            "data": scale.data.get(setting.dataset, setting.dataset),
            "seed": seed,
            "updates": updates,
            "validate_every": max(1, round(updates / common["validations"])),
            "model": {"backbone": setting.backbone},
            "tasks": {
                "way": setting.way,
                "shot": setting.shot,
                "classes": class_list(setting.classes, scale.glyphs),
                **common["noise"][str(setting.noise)],
            },
            "strategy": chosen,
        },
        common["glyphs"] if scale.glyphs else {},
    ]
    config = TrainConfig()
    for layer in layers:
        config = with_values(config, layer, "recipe")
    changed = apply_presets(scale.presets, config)
    may_rotate = replace(config, tasks=replace(config.tasks, rotated=changed.tasks.rotated))
    for what in ("data", "tasks", "updates", "strategy"):
        if getattr(changed, what) != getattr(may_rotate, what):
            wrong = f"--preset {' '.join(scale.presets)} changes {what}, which the recipes decide"
            kinds = "hardware, images, model, learner or optimiser, as gpu, augment and rotated"
            raise DertsError(f"{wrong}: use presets for {kinds}")
    config = changed.resolved()
    warmup = round(scale.updates * config.strategy.warmup)
    return replace(config, strategy=replace(config.strategy, warmup=warmup))


@cache
def class_list(count: int, glyphs: bool = False) -> tuple[str, ...]:
    """The paper's 16 or 32 mini-ImageNet training classes, or so many characters; 0: no list."""
    if not count:
        return ()
    if glyphs:
        return open_data("glyphs")["train"].class_names[:count]
    return tuple(read_json("paper.json")["class_lists"][str(count)])


def run_key(config: TrainConfig, dataset: str) -> str:
    """What tells a run from others: its resolved config, as a digest.

    Left out are WITHOUT_EFFECT, the path of the data, and what the strategy does not read. How
    often a run is validated counts where its weights are those that were best.
    """
    values = as_values(config.resolved()) | {"data": dataset}
    for name in WITHOUT_EFFECT:
        if name != "validate_every" or config.evaluation.weights != "best":
            del values[name]
    reads = READS.get(config.strategy.name, tuple(values["strategy"]))
    values["strategy"] = {name: values["strategy"][name] for name in reads}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]


def warmup_key(config: TrainConfig, dataset: str) -> str:
    """Equal for runs that differ in nothing but the strategy: they can share a warm-up."""
    strategy = StrategyConfig(name="random", warmup=config.strategy.warmup)
    return run_key(replace(config, strategy=strategy), dataset)


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


def point(config: TrainConfig, fraction: float) -> int:
    """The update at which a share of the training is done, at least 1."""
    return max(1, round(fraction * config.updates))


def make_runs(
    found: Sequence[Cell], seeds: Sequence[int], scale: Scale, out: Path
) -> list[GridRun]:
    """The runs that cells need, one for each setting and seed; settings may share a run's folder.

    Each is to be trained as far as its last cell needs. The order is that of the cells, but seed
    by seed, and US and ATS after the others, so that comparisons are whole as early as may be.
    """
    fractions = read_recipe("common")["points"]
    furthest: dict[Setting, float] = {}
    for cell in found:
        furthest[cell.setting] = max(cell.fraction, furthest.get(cell.setting, 0.0))
    configs = {setting: make_config(setting, 0, scale) for setting in furthest}
    runs = []
    for seed, (setting, fraction) in itertools.product(seeds, furthest.items()):
        config = replace(configs[setting], seed=seed)
        dataset = "glyphs" if scale.glyphs else setting.dataset
        words = f"{setting.way}way{setting.shot}shot"
        words += f"-{setting.classes}classes" if setting.classes else ""
        words += f"-noise{100 * setting.noise:.0f}" if setting.noise else ""
        words += f"-{setting.backbone}-{setting.learner}-{setting.strategy}"
        name = f"{words}-{config.updates}-seed{seed}-{run_key(config, dataset)}"
        warmup = out / "warm-ups" / dataset / warmup_key(config, dataset)
        points = tuple(point(config, share) for share in fractions)
        until = point(config, fraction)
        runs.append(GridRun(setting, config, out / dataset / name, warmup, until, points))
    return sorted(runs, key=lambda run: run.setting.strategy in ("us", "ats"))


def seeds_in(out: Path) -> set[int]:
    names = (re.search(r"-seed(\d+)-\w+$", folder.name) for folder in out.glob("*/*"))
    return {int(found[1]) for found in names if found}


def to_run(runs: Sequence[GridRun]) -> list[GridRun]:
    """Each run once, to the furthest update asked for, without those that are there already."""
    by_folder: dict[Path, GridRun] = {}
    for run in runs:
        by_folder[run.folder] = max(by_folder.get(run.folder, run), run, key=lambda one: one.until)
    return [run for run in by_folder.values() if not point_file(run.folder, run.until).exists()]
