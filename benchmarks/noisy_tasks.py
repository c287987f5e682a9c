"""The strategies where tasks are mislabelled, where labels are swapped, and where all is clean.

    python benchmarks/noisy_tasks.py --data mini --out results/noisy-tasks-h200.json

Every variant of a learner and seed continues from one shared warm-up (per kind of noise), so that
differences are paired. One line per run; the JSON file is written after each, and a run that it
already holds is not made again. `--split val` is how a preset's values are chosen.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tyro

from derts.config import StrategyConfig
from derts.config_file import PAPER, Values, apply_presets, with_values
from derts.data import open_data
from derts.files import write_atomically
from derts.training.driver import Driver
from derts.training.trainer import Trainer

NAMES = ("random", "random-votes", "derts", "us", "ats", "gradmatch", "hardest", "easiest")
STRATEGIES: dict[str, Values] = {
    **{name: {"strategy": {"name": name}} for name in NAMES},
    "paper": {"strategy": {**PAPER, "drop": "paper"}},
    "derts-given-labels": {"strategy": {"name": "derts", "votes": False}},
    "derts-every-round": {"strategy": {"name": "derts", "select": "greedy"}},
    "derts-all-images": {"strategy": {"name": "derts", "pool_images": 0}},
}
TASKS: dict[str, Values] = {
    "": {"tasks": {"noise": "tasks:0.6"}},
    " clean": {"tasks": {"noise": "none"}},
    " swap25": {"tasks": {"noise": "swap:3.02"}},
    " swap40": {"tasks": {"noise": "swap:5.62"}},
}
VARIANTS: dict[str, Values] = {
    f"{name}{kind}": {**values, **tasks}
    for kind, tasks in TASKS.items()
    for name, values in STRATEGIES.items()
}
VARIANTS["paper clean"] = {"strategy": PAPER, **TASKS[" clean"]}
USUAL = tuple(
    f"{name}{kind}"
    for kind in ("", " clean")
    for name in ("random", "random-votes", "paper", "derts")
)


def main(
    data: str,
    out: Path,
    learners: tuple[str, ...] = ("anil", "protonet"),
    variants: tuple[str, ...] = USUAL,
    preset: tuple[str, ...] = ("gpu",),
    updates: int = 500,
    warmup: int = 100,
    seeds: tuple[int, ...] = (0, 1, 2),
    split: str = "test",
    pool: int = 3200,
    meta_batch: int = 32,
    width: int = 64,
) -> None:
    """Run every learner, seed and variant."""
    if unknown := set(variants) - VARIANTS.keys():
        raise SystemExit(f"no variant {', '.join(unknown)}: choose from {', '.join(VARIANTS)}")
    tables = open_data(data)
    runs: list[dict[str, Any]] = json.loads(out.read_text())["runs"] if out.exists() else []
    done = {(run["learner"], run["variant"], run["seed"]) for run in runs}
    for learner in learners:
        values: Values = {
            "data": Path(data).name,
            "learner": {"name": learner},
            "strategy": {"warmup": warmup, "pool": pool},
            "evaluation": {"split": split},
            "model": {"width": width},
            "updates": updates,
            "meta_batch": meta_batch,
        }
        base = with_values(apply_presets(preset), values, "benchmark")

        with TemporaryDirectory() as warm_ups:
            for seed, name in itertools.product(seeds, variants):
                if (learner, name, seed) in done:
                    continue
                config = replace(with_values(base, VARIANTS[name], name), seed=seed).resolved()
                strategy = StrategyConfig(warmup=config.strategy.warmup)
                key = hashlib.sha256(repr(replace(config, strategy=strategy)).encode()).hexdigest()
                result = Driver(Trainer(config, tables), warmup=Path(warm_ups, key)).drive()
                each = round(1000 * (result["seconds_per_update"] or 0.0), 3)
                runs.append(result | {"variant": name, "ms_per_update": each, "learner": learner})
                print(
                    f"{learner} {name} seed {seed}: {result['accuracy']:.2f} ± "
                    f"{result['interval']:.2f}, {each:.1f} ms per update",
                    flush=True,
                )
                about = {"machine": result["machine"], "code": result["code"], "runs": runs}
                write_atomically(out, (json.dumps(about) + "\n").encode())


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
