"""Which drop rule suits the demo? Compared on validation characters, never on test ones.

    python benchmarks/drop_rules.py --out results/drop-rules-cpu.json
    python benchmarks/drop_rules.py --noise swap --seeds 0 1 2 --out results/swapped-labels-cpu.json

With `--noise swap` the labels are swapped inside every task, 40% of them, and there is nothing to
drop: what helps works inside of tasks. Three hundred updates then, for the noise to tell.

The demo's own data and settings, evaluated on the validation split. One line per run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from derts.commands.demo import CHARACTERS, IMAGES, SMALL
from derts.comparison import Comparison, compare
from derts.config_file import PRESETS, Values, apply_presets, with_values
from derts.data import glyphs
from derts.provenance import code_version, machine
from derts.training import Trainer
from derts.training.run import Result

GIVEN: Values = {"name": "derts", "doubt": "none"}  # labels as given: nothing is mended first
VARIANTS: dict[str, Values] = {
    "random": {"strategy": {"name": "random"}},
    "paper": PRESETS["paper-noisy"],
    "loss, automatic, before": {"strategy": GIVEN},
    "error, automatic, before": {"strategy": {**GIVEN, "drop_score": "error"}},
    "loss, 1.25 × mean, before": {"strategy": {**GIVEN, "drop_rule": "multiple"}},
    "loss, automatic, after": {"strategy": {**GIVEN, "drop_when": "after"}},
    "derts": {"strategy": {"name": "derts"}},
}
SWAPPED: dict[str, Values] = {
    "random": {"strategy": {"name": "random"}},
    "random, clean tasks": {"strategy": {"name": "random"}, "tasks": {"noise": "none"}},
    "random tasks, soft targets": {
        "strategy": {
            "name": "derts",
            "engine": "uniform",
            "weights": "none",
            "drop_score": "none",
            "doubt": "posterior",
        }
    },
    "derts, soft targets": {"strategy": {"name": "derts", "doubt": "posterior"}},
    "random tasks, votes": {
        "strategy": {
            "name": "derts",
            "engine": "uniform",
            "weights": "none",
            "drop_score": "none",
        }
    },
    "derts": {"strategy": {"name": "derts"}},
}
SWAPS: Values = {
    "tasks": {"noise": "swap", "swap_rate": 2.8},  # of the ten images that a class has in a task
    "strategy": {"warmup": 60},
    "updates": 300,
}


def main() -> None:
    """Run every rule with every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--noise", choices=["tasks", "swap"], default="tasks")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it runs")
    options = parser.parse_args()
    always: Values = {"strategy": {"selects": "always"}}
    config = with_values(apply_presets(["demo"]), always, "benchmark")
    swapped = options.noise == "swap"
    if swapped:
        config = with_values(config, SWAPS, "benchmark")
    if options.quick:
        config = with_values(config, {**SMALL, "updates": 42}, "--quick")
    config = with_values(config, {"evaluation": {"split": "val"}}, "benchmark")
    found = Comparison()

    def record(result: Result, trainer: Trainer) -> None:
        found.results.append(result)
        print(f"{result['variant']} seed {result['seed']}: {result['accuracy']:.2f}", flush=True)
        found.save(options.out, machine=machine(str(trainer.device)), code=code_version())

    tables = glyphs(characters=CHARACTERS, images_per_character=IMAGES)
    compare(config, SWAPPED if swapped else VARIANTS, options.seeds, tables, after_run=record)


if __name__ == "__main__":
    main()
