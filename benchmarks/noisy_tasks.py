"""The strategies where tasks are mislabelled, where labels are swapped, and where all is clean.

    python benchmarks/noisy_tasks.py --data mini --out results/noisy-tasks-h200.json

Every variant of a learner and seed continues from one shared warm-up (per kind of noise), so that
differences are paired. One line per run; the JSON file is written after each, and a run that it
already holds is not made again. `--split val` is how a preset's values are chosen.
"""

from __future__ import annotations

import json
from pathlib import Path

import tyro

from derts.comparison import Comparison, compare
from derts.config_file import PAPER, Values, apply_presets, with_values
from derts.data import open_data
from derts.training.result import Result

NAMES = ("random", "random-votes", "derts", "us", "ats", "gradmatch", "hardest", "easiest")
STRATEGIES: dict[str, Values] = {
    **{name: {"strategy": {"name": name}} for name in NAMES},
    "paper": {"strategy": {**PAPER, "drop": "paper"}},
    "derts-given-labels": {"strategy": {"name": "derts", "votes": False}},
    "derts-every-round": {"strategy": {"name": "derts", "select": "greedy"}},
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
    everything = Comparison(json.loads(out.read_text())["runs"] if out.exists() else [])
    done = {(run["learner"], run["variant"], run["seed"]) for run in everything.results}
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

        def record(result: Result, learner: str = learner) -> None:
            result["learner"] = learner
            everything.results.append(result)
            print(
                f"{learner} {result['variant']} seed {result['seed']}: {result['accuracy']:.2f} ± "
                f"{result['interval']:.2f}, {result['ms_per_update']:.1f} ms per update",
                flush=True,
            )
            everything.save(out, machine=result["machine"], code=result["code"])

        for seed in seeds:
            missing = [name for name in variants if (learner, name, seed) not in done]
            asked = {name: VARIANTS[name] for name in missing}
            compare(base, asked, [seed], tables, after_run=record)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
