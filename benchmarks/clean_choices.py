"""What might beat random sampling on clean tasks: validation classes of glyphs or mini-ImageNet.

    python benchmarks/clean_choices.py --out results/clean-choices-cpu.json
    derts data prepare PACKS stores/mini42 --size 42
    python benchmarks/clean_choices.py --data stores/mini42 --variants random "confused pairs" \\
        "hardest tasks" --out results/clean-choices-photos-cpu.json

The demo's data with clean tasks, 300 updates of which 60 are warm-up; or photos of 42×42 pixels,
CNN4-32, 1,000 updates of four tasks, mirrored and moved. 30% of each pool are chosen,
by facility location with its weights limited or not, its outliers left out or not, its batches
each a coreset of its own or not, by loss, or by the pairs of classes that the model confuses. One
line per run.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from itertools import product
from pathlib import Path

from redundant_pools import clean_demo
from validation_curves import SEEN_ANEW

from derts.config import TrainConfig
from derts.config_file import Values, with_values
from derts.data import open_data
from derts.provenance import code_version, machine
from derts.selection.choice import Candidates, Picked
from derts.selection.derts import pick_facilities
from derts.selection.rounds import PoolTasks
from derts.training import Trainer
from derts.training.run import Result, make_result

PHOTOS: Values = {
    **SEEN_ANEW,
    "tasks": {"query": 5},
    "model": {"width": 32},
    "learner": {"distance_divisor": 16.0},
    "strategy": {"warmup": 60, "pool": 480},
    "evaluation": {"split": "val", "tasks": 600},
    "updates": 1000,
    "meta_batch": 4,
}
OUTLIERS = 0.1


def pick_without_outliers(candidates: Candidates) -> Picked:
    """Facility location among the tasks that are not furthest from the pool's mean."""
    rows = candidates.gradients()
    far = (rows - rows.mean(0)).norm(dim=1).argsort()
    near = far[: len(far) - int(OUTLIERS * len(far))].sort().values.cpu()
    return pick_facilities(replace(candidates, indices=candidates.indices[near]))


VARIANTS: dict[str, Values] = {
    "random": {"name": "random"},
    "confused pairs": {"name": "derts", "engine": "confused"},
    "hardest tasks": {"name": "derts", "engine": "hardest"},
    "derts": {"name": "derts"},
    "derts, γ as weights": {"name": "derts", "weights": "counts"},
    "derts, γ of at most twice the mean": {"name": "derts", "weights": "counts", "weight_cap": 2.0},
    "derts, a coreset per batch": {"name": "derts", "batching": "coreset"},
    "derts, outliers left out": {"name": "derts"},
}
OUTLIERS_LEFT_OUT = "derts, outliers left out"


def main() -> None:
    """Every learner and variant with every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="a store of mini-ImageNet (default: glyphs)")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--learners", nargs="+", default=["anil", "protonet"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it runs")
    options = parser.parse_args()
    base, tables = clean_demo(options.quick)
    if options.data is not None:
        base = with_values(TrainConfig(), {**PHOTOS, "data": options.data.name}, "benchmark")
        tables = open_data(str(options.data))
    runs: list[Result] = []
    for seed, learner, name in product(options.seeds, options.learners, options.variants):
        strategy = {"selects": "always", **VARIANTS[name]}
        values: Values = {"strategy": strategy, "seed": seed, "learner": {"name": learner}}
        trainer = Trainer(with_values(base, values, f"variant {name}"), tables)
        if name == OUTLIERS_LEFT_OUT:
            trainer.strategy = PoolTasks(trainer.config.strategy, pick_without_outliers)
        trainer.train()
        result = make_result(trainer, trainer.evaluate("val"))
        runs.append(result | {"variant": name, "learner": learner})
        print(f"{learner}, {name}, seed {seed}: {result['accuracy']:.2f}", flush=True)
        about = {"machine": machine("cpu"), "code": code_version()}
        options.out.write_text(json.dumps({**about, "runs": runs}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
