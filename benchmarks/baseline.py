"""Random task sampling with every learner: the numbers all later comparisons start from.

    python benchmarks/baseline.py --data mini --out results/baseline-h200.json

Trains each learner with several seeds by the known-good recipe (mini-ImageNet 5-way 5-shot,
CNN4-64, 32 tasks per update) and writes one JSON file. One line per run is printed.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from derts.config import LearnerConfig, TrainConfig
from derts.config_file import apply_presets, with_values
from derts.data import open_data
from derts.evaluation import Evaluation
from derts.files import write_atomically
from derts.training import Trainer
from derts.training.result import make_result

QUICK = {"model": {"width": 4}, "tasks": {"query": 2}, "evaluation": {"tasks": 10, "query": 2}}


def one_run(config: TrainConfig, tables: Any) -> dict[str, Any]:
    """Train and evaluate; also the untrained learner, and a time that leaves compilation out."""
    trainer = Trainer(config, tables)
    untrained: Evaluation = trainer.evaluate("test")
    warm = min(20, config.updates // 2)
    trainer.train(warm)
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start
    result = make_result(trainer, trainer.evaluate("test"))
    validation = trainer.evaluate("val")
    return result | {
        "untrained_accuracy": round(untrained.mean, 4),
        "validation_accuracy": round(validation.mean, 4),
        "ms_per_update": round(1000 * seconds / max(config.updates - warm, 1), 3),
    }


def main() -> None:
    """Run every learner and seed; write what is there after each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="glyphs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--learners", nargs="+", default=["protonet", "anil", "maml"])
    parser.add_argument("--preset", nargs="*", default=["gpu"])
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--maml-updates", type=int, default=300)
    parser.add_argument("--maml-batch", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it runs")
    options = parser.parse_args()
    tables = open_data(options.data)
    results = []
    for name in options.learners:
        for seed in range(options.seeds if name != "maml" else 1):
            base = replace(apply_presets(options.preset), data=Path(options.data).name, seed=seed)
            config = replace(base, learner=LearnerConfig(name=name), updates=options.updates)
            if name == "maml":
                config = replace(
                    config,
                    updates=options.maml_updates,
                    meta_batch=options.maml_batch,
                    hardware=replace(config.hardware, precision="float32"),
                )
            if options.quick:
                config = with_values(config, QUICK, "--quick")
            result = one_run(config, tables)
            results.append(result)
            print(
                f"{name} seed {seed}: test {result['accuracy']:.2f} ± {result['interval']:.2f}, "
                f"validation {result['validation_accuracy']:.2f}, untrained "
                f"{result['untrained_accuracy']:.2f}, {result['ms_per_update']:.1f} ms per update",
                flush=True,
            )
            write_atomically(options.out, (json.dumps({"runs": results}) + "\n").encode())


if __name__ == "__main__":
    main()
