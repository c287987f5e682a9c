"""Label smoothing with both learners on glyphs, tasks clean and with swapped labels.

    python benchmarks/soft_targets.py --out results/soft-targets-cpu.json

The demo's data; 300 updates, 40% of labels swapped inside of every task or none; accuracy on
validation characters. What smoothing does to random sampling and to derts alike. One line per run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from drop_rules import SWAPS

from derts.commands.demo import CHARACTERS, IMAGES, SMALL
from derts.comparison import Comparison, compare
from derts.config_file import Values, apply_presets, with_values
from derts.data import glyphs
from derts.provenance import code_version, machine
from derts.training import Trainer
from derts.training.run import Result

CLEAN: Values = {"tasks": {"noise": "none"}}
SHARES = (0.0, 0.5)
VARIANTS: dict[str, Values] = {
    f"{name}, smoothing {share:g}": {**values, "learner": {"smoothing": share}}
    for share in SHARES
    for name, values in (
        ("random", {"strategy": {"name": "random"}}),
        ("derts", {"strategy": {"name": "derts"}}),
        ("random, clean tasks", {"strategy": {"name": "random"}, **CLEAN}),
    )
}


def main() -> None:
    """Run every variant with every learner and seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--learners", nargs="+", default=["anil", "protonet"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it runs")
    options = parser.parse_args()
    found = Comparison()
    tables = glyphs(characters=CHARACTERS, images_per_character=IMAGES)
    for learner in options.learners:
        config = with_values(apply_presets(["demo"]), SWAPS, "benchmark")
        if options.quick:
            config = with_values(config, {**SMALL, "updates": 62}, "--quick")
        values: Values = {"learner": {"name": learner}, "evaluation": {"split": "val"}}
        config = with_values(config, values, "benchmark")

        def record(result: Result, trainer: Trainer, learner: str = learner) -> None:
            result["learner"] = learner
            found.results.append(result)
            print(
                f"{learner}, {result['variant']} seed {result['seed']}: {result['accuracy']:.2f}",
                flush=True,
            )
            found.save(options.out, machine=machine(str(trainer.device)), code=code_version())

        compare(config, VARIANTS, options.seeds, tables, after_run=record)


if __name__ == "__main__":
    main()
