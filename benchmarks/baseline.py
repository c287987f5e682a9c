"""Random task sampling with every learner: the numbers all later comparisons start from.

    python benchmarks/baseline.py --data mini --out results/baseline-h200.json

Trains each learner with several seeds by the known-good recipe (mini-ImageNet 5-way 5-shot,
CNN4-64, 32 tasks per update) and writes one JSON file. One line per run is printed.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import tyro

from derts.config import TrainConfig
from derts.config_file import Values, apply_presets, with_values
from derts.data import open_data
from derts.files import write_json
from derts.training import Trainer
from derts.training.result import make_result

QUICK: Values = {
    "model": {"width": 4},
    "tasks": {"query": 2},
    "evaluation": {"tasks": 10, "query": 2},
}


def one_run(config: TrainConfig, tables: Any) -> dict[str, Any]:
    """Train and evaluate; also the untrained learner, and a time that leaves compilation out."""
    trainer = Trainer(config, tables)
    untrained = trainer.evaluate("test")
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


def main(
    out: Path,
    data: str = "glyphs",
    learners: tuple[str, ...] = ("protonet", "anil", "maml"),
    preset: tuple[str, ...] = ("gpu",),
    updates: int = 600,
    maml_updates: int = 300,
    maml_batch: int = 8,
    seeds: int = 3,
    quick: bool = False,
) -> None:
    """Run every learner and seed; write what is there after each run. Quick: tiny."""
    tables = open_data(data)
    maml: Values = {"updates": maml_updates, "meta_batch": maml_batch}
    maml = {**maml, "hardware": {"precision": "float32"}}
    results = []
    for name in learners:
        for seed in range(seeds if name != "maml" else 1):
            values: Values = {"data": Path(data).name, "seed": seed, "learner": {"name": name}}
            values = {**values, "updates": updates, **(maml if name == "maml" else {})}
            config = with_values(apply_presets(preset), values, "benchmark")
            if quick:
                config = with_values(config, QUICK, "--quick")
            result = one_run(config, tables)
            results.append(result)
            print(
                f"{name} seed {seed}: test {result['accuracy']:.2f} ± {result['interval']:.2f}, "
                f"validation {result['validation_accuracy']:.2f}, untrained "
                f"{result['untrained_accuracy']:.2f}, {result['ms_per_update']:.1f} ms per update",
                flush=True,
            )
            write_json(out, {"runs": results})


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
