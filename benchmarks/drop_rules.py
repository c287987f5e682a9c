"""Which drop rule suits the demo? Compared on validation characters, never on test ones.

    python benchmarks/drop_rules.py --out results/drop-rules-cpu.json

The demo's own data and settings, evaluated on the validation split. One line per run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from derts.commands.demo import CHARACTERS, IMAGES, SMALL
from derts.comparison import Comparison, compare
from derts.config_file import PRESETS, Values, apply_presets, with_values
from derts.data import glyphs
from derts.runs import code_version, machine
from derts.training import Trainer
from derts.training.run import Result

VARIANTS: dict[str, Values] = {
    "random": {"strategy": {"name": "random"}},
    "paper": PRESETS["paper-noisy"],
    "loss, automatic, before": {"strategy": {"name": "derts"}},
    "error, automatic, before": {"strategy": {"name": "derts", "drop_score": "error"}},
    "loss, 1.25 × mean, before": {"strategy": {"name": "derts", "drop_rule": "multiple"}},
    "loss, automatic, after": {"strategy": {"name": "derts", "drop_when": "after"}},
}


def main() -> None:
    """Run every rule with every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it runs")
    options = parser.parse_args()
    config = apply_presets(["demo"])
    if options.quick:
        config = with_values(config, {**SMALL, "updates": 42}, "--quick")
    config = with_values(config, {"evaluation": {"split": "val"}}, "benchmark")
    found = Comparison()

    def record(result: Result, trainer: Trainer) -> None:
        found.results.append(result)
        print(f"{result['variant']} seed {result['seed']}: {result['accuracy']:.2f}", flush=True)
        found.save(options.out, machine=machine(str(trainer.device)), code=code_version())

    tables = glyphs(characters=CHARACTERS, images_per_character=IMAGES)
    compare(config, VARIANTS, options.seeds, tables, after_run=record)


if __name__ == "__main__":
    main()
