"""The strategies where tasks are mislabelled, where labels are swapped, and where all is clean.

    python benchmarks/noisy_tasks.py --data mini --out results/noisy-tasks-h200.json

Every variant of a learner and seed continues from one shared warm-up (per kind of noise), so that
differences are paired. One line per run; the JSON file is written after each, and a run that it
already holds is not made again. `--split val` is how a preset's values are chosen.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from derts.comparison import Comparison, compare
from derts.config_file import PAPER, Values, apply_presets, with_values
from derts.data import open_data
from derts.provenance import code_version, machine
from derts.training import Trainer

NAMES = ("random", "random-votes", "derts", "us", "ats", "gradmatch", "hardest", "easiest")
STRATEGIES: dict[str, Values] = {
    **{name: {"strategy": {"name": name}} for name in NAMES},
    "paper": {"strategy": {**PAPER, "drop": "paper"}},
    "derts-given-labels": {"strategy": {"name": "derts", "votes": False}},
    "derts-every-round": {"strategy": {"name": "derts", "select": "greedy"}},
    "derts-all-images": {"strategy": {"name": "derts", "pool_images": 0}},
}
TASKS: dict[str, Values] = {
    "": {"tasks": {"noise": "tasks", "noisy_fraction": 0.6}},
    " clean": {"tasks": {"noise": "none"}},
    " swap25": {"tasks": {"noise": "swap", "swap_rate": 3.02}},
    " swap40": {"tasks": {"noise": "swap", "swap_rate": 5.62}},
}
VARIANTS: dict[str, Values] = {
    f"{name}{kind}": {**values, **tasks}
    for kind, tasks in TASKS.items()
    for name, values in STRATEGIES.items()
}
VARIANTS["paper clean"] = {"strategy": PAPER, **TASKS[" clean"]}
USUAL = [
    f"{name}{kind}"
    for kind in ("", " clean")
    for name in ("random", "random-votes", "paper", "derts")
]


def main() -> None:
    """Run every learner, seed and variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--learners", nargs="+", default=["anil", "protonet"])
    parser.add_argument("--variants", nargs="+", default=USUAL, choices=list(VARIANTS))
    parser.add_argument("--preset", nargs="*", default=["gpu"])
    parser.add_argument("--updates", type=int, default=500)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--split", default="test")
    parser.add_argument("--pool", type=int, default=3200)
    parser.add_argument("--meta-batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()
    tables = open_data(options.data)
    everything = Comparison.load(options.out) if options.out.exists() else Comparison()
    done = {(run["learner"], run["variant"], run["seed"]) for run in everything.results}
    for learner in options.learners:
        values: Values = {
            "data": Path(options.data).name,
            "learner": {"name": learner},
            "strategy": {"warmup": options.warmup, "pool": options.pool},
            "evaluation": {"split": options.split},
            "model": {"width": options.width},
            "updates": options.updates,
            "meta_batch": options.meta_batch,
        }
        base = with_values(apply_presets(options.preset), values, "benchmark")

        def record(result: dict[str, object], trainer: Trainer, learner: str = learner) -> None:
            result["learner"] = learner
            everything.results.append(result)
            print(
                f"{learner} {result['variant']} seed {result['seed']}: {result['accuracy']:.2f} ± "
                f"{result['interval']:.2f}, {result['ms_per_update']:.1f} ms per update",
                flush=True,
            )
            everything.save(options.out, machine=machine(str(trainer.device)), code=code_version())

        for seed in options.seeds:
            missing = [name for name in options.variants if (learner, name, seed) not in done]
            compare(
                base, {name: VARIANTS[name] for name in missing}, [seed], tables, after_run=record
            )


if __name__ == "__main__":
    main()
