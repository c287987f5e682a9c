"""What keeps a network from learning 16 classes by heart: mini-ImageNet, validation classes.

    derts data prepare PACKS stores/mini42 --size 42
    python benchmarks/few_classes.py --data stores/mini42 --out results/few-classes-cpu.json

Small enough for a CPU: 42×42 pixels, CNN4-32, 4,000 updates of four tasks, which see every image
about 80 times (the runs of table 3, 1,000 times). Accuracy on validation classes along the way, one
line per run; test classes are not looked at.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from derts.config import TrainConfig
from derts.config_file import PRESETS, Values, as_values, with_values
from derts.data import glyphs, open_data
from derts.runs import code_version, machine
from derts.training import Trainer

BASE: Values = {
    "tasks": {"query": 5, "class_budget": 16},
    "model": {"width": 32},
    "learner": {"distance_divisor": 16.0},
    "strategy": {"warmup": 60, "pool": 480},
    "evaluation": {"split": "val", "tasks": 300, "query": 10},
    "updates": 4000,
    "meta_batch": 4,
}
SEEN_ANEW: Values = {"augment": {"mirror": True, "shift": 4}}
VARIANTS: dict[str, Values] = {
    "random": {},
    "random, seen anew": SEEN_ANEW,
    "derts, seen anew": {**PRESETS["derts"], **SEEN_ANEW},
    "paper, seen anew": {**PRESETS["paper"], **SEEN_ANEW},
}
LOOKS = 8


def curve(trainer: Trainer) -> dict[int, float]:
    """Train; accuracy on validation classes after each eighth of the updates."""
    found = {}
    for number in range(1, LOOKS + 1):
        trainer.train(until=trainer.config.updates * number // LOOKS)
        found[trainer.update] = round(trainer.evaluate("val").mean, 4)
    return found


def main() -> None:
    """Every learner, variant and seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="a store of mini-ImageNet; --quick: built-in glyphs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--learners", nargs="+", default=["anil", "protonet"])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it runs")
    options = parser.parse_args()
    if not options.quick and options.data is None:
        parser.error("--data is missing: a store of mini-ImageNet that derts data prepare made")
    base = with_values(TrainConfig(), BASE, "benchmark")
    if options.quick:
        small = {"tasks": {"class_budget": 0}, "model": {"width": 4}, "updates": 8,
                 "strategy": {"warmup": 2, "pool": 20}, "evaluation": {"tasks": 5}}  # fmt: skip
        base = with_values(base, small, "--quick")
    tables = glyphs(characters=60, images_per_character=15) if options.quick else None
    tables = tables or open_data(options.data)
    data = "glyphs-60x15" if options.quick else Path(options.data).name
    runs: list[dict[str, Any]] = []
    for learner in options.learners:
        for seed in options.seeds:
            for name in options.variants:
                config = with_values(base, VARIANTS[name], name)
                values = {"learner": {"name": learner}, "seed": seed, "data": data}
                trainer = Trainer(with_values(config, values, "benchmark"), tables)
                found = curve(trainer)
                shown = " ".join(f"{value:.1f}" for value in found.values())
                print(f"{learner}, {name}, seed {seed}: {shown}", flush=True)
                config = trainer.config
                runs.append(
                    {"learner": learner, "variant": name, "seed": seed, "validation": found,
                     "config": as_values(config)}
                )  # fmt: skip
                about = {"machine": machine(str(trainer.device)), "code": code_version()}
                text = json.dumps({**about, "runs": runs}, indent=1) + "\n"
                options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
