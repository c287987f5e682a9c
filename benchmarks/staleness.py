"""What it costs that a feature bank's features are older than the model (--strategy.bank).

    python benchmarks/staleness.py --out results/staleness-cpu.json
    python benchmarks/staleness.py --quick --out FILE                  # tiny: shows that it runs

The demo's data and settings, clean tasks, a constant learning rate, training by derts with a bank;
at the end of some rounds, when features are as old as they get, what `derts diagnose` says of the
`logit` estimate from fresh features and from the bank: the error of the pool's exact gradient when
30% of the tasks are selected, with calibrated weights, and how well distances between tasks agree
with exact ones.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from derts.commands.demo import CHARACTERS, IMAGES, SMALL
from derts.config_file import apply_presets, with_values
from derts.data import glyphs
from derts.diagnosis import diagnose
from derts.provenance import code_version, machine
from derts.training import Trainer

BANK = {
    "tasks": {"noise": "none"},
    "strategy": {"name": "derts", "bank": True, "pool_images": 0, "selects": "always"},
    "optimiser": {"schedule": "constant"},
    "hardware": {"device": "cpu"},
}
ROUNDS = (1, 3, 5)
FRESH, STALE = "logit", "logit, from the bank"


def at_ends_of_rounds(trainer: Trainer, tasks: int) -> list[dict[str, Any]]:
    """Rows of a run: the diagnosis at the end of each of ROUNDS."""
    settings = trainer.config.strategy
    each = round(settings.pool * settings.ratio) // trainer.config.meta_batch
    rows = []
    for number in ROUNDS:
        trainer.train(until=settings.warmup + number * each)
        bank = trainer.learner.bank
        assert bank is not None
        kept = {name: value.clone() for name, value in bank.state_dict().items()}
        found = diagnose(
            trainer.learner, trainer.images, trainer.draw(tasks, "diagnosis", number), ratio=0.3
        )
        bank.load_state_dict(kept)  # what the diagnosis embedded is not for the next round
        mine = {row["estimate"]: row for row in found.estimates}
        rows.append(
            {
                "updates": trainer.update,
                "kept": float(kept["fresh"].float().mean()),
                "random": found.random["mean"],
                "error": {name: mine[name]["error"]["calibrated"] for name in (FRESH, STALE)},
                "rank_correlation": {
                    name: mine[name]["rank_correlation"] for name in (FRESH, STALE)
                },
            }
        )
    return rows


def main() -> None:
    """Both learners, every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tasks", type=int, default=400, help="of the pool that is diagnosed")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    tables = glyphs(characters=CHARACTERS, images_per_character=IMAGES)
    results = []
    for learner in ("anil", "protonet"):
        for seed in options.seeds:
            config = with_values(apply_presets(["demo"]), BANK, "benchmark")
            if options.quick:
                config = with_values(config, {**SMALL, "strategy": {"pool": 20}}, "--quick")
            values = {"learner": {"name": learner}, "seed": seed}
            trainer = Trainer(with_values(config, values, "benchmark"), tables)
            for row in at_ends_of_rounds(trainer, 20 if options.quick else options.tasks):
                results.append({"learner": learner, "seed": seed, **row})
                errors = ", ".join(f"{name} {value:.3f}" for name, value in row["error"].items())
                print(
                    f"{learner}, seed {seed}, update {row['updates']}: {errors}, random "
                    f"{row['random']:.3f}; {100 * row['kept']:.0f}% of the images in the bank",
                    flush=True,
                )
    content = {"machine": machine("cpu"), "code": code_version(), "results": results}
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
