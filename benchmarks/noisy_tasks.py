"""Random sampling, the paper's rule and derts where most tasks are mislabelled, and where none is.

    python benchmarks/noisy_tasks.py --data mini --out results/noisy-tasks-h200.json

Every variant of a learner and seed continues from one shared warm-up (per kind of noise), so that
differences are paired. One line per run; the JSON file is written after each, and a run that it
already holds is not made again.
`--split val --variants …` is how a preset's values are chosen: on validation classes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from derts.comparison import Comparison, compare
from derts.config_file import PRESETS, Values, apply_presets, with_values
from derts.data import open_data
from derts.provenance import code_version, machine
from derts.training import Trainer
from derts.training.checkpoint import save_checkpoint
from derts.training.result import Result
from derts.training.run_folder import Run

CLEAN: Values = {"tasks": {"noise": "none"}}


def derts(**strategy: object) -> Values:
    """The derts preset with some of the strategy's values changed."""
    return {"strategy": {"name": "derts", **strategy}}


def swapped(rate: float) -> Values:
    """The paper's noise: labels exchanged inside of every task."""
    return {"tasks": {"noise": "swap", "swap_rate": rate}}


def smoothed(share: float, **strategy: object) -> Values:
    """The same with that share of every target spread over all classes."""
    return {**derts(**strategy), "learner": {"smoothing": share}}


VARIANTS: dict[str, Values] = {
    "random": {"strategy": {"name": "random"}},
    "random-smooth": {"strategy": {"name": "random"}, "learner": {"smoothing": 0.3}},
    "derts-smooth": smoothed(0.3),
    "derts-smooth50": smoothed(0.5),
    "derts-query-smooth": smoothed(0.3, doubt="query-votes"),
    "derts-hardest-smooth": smoothed(0.3, engine="hardest"),
    "paper": PRESETS["paper-noisy"],
    "derts": derts(selects="where-it-pays"),
    "random-hard": {"strategy": {"name": "random"}, "learner": {"smoothing": 0.0}},
    "derts-hard": smoothed(0.0),
    "derts-given-labels": derts(doubt="none"),
    "derts-soft-targets": derts(doubt="posterior"),
    "derts-query-votes": derts(doubt="query-votes"),
    "query-votes-alone": derts(
        doubt="query-votes", engine="uniform", weights="none", drop_score="none"
    ),
    "votes-alone": derts(engine="uniform", weights="none", drop_score="none"),
    "derts-bank": derts(bank=True, pool_images=0),
    "derts-all-images": derts(pool_images=0),
    "derts-fewer-images": derts(pool_images=6400),
    "derts-uniform": derts(engine="uniform"),
    "derts-hardest": derts(engine="hardest"),
    "derts-counts": derts(weights="counts"),
    "derts-calibrated": derts(weights="calibrated"),
    "derts-unweighted": derts(weights="none"),
    "derts-coreset": derts(batching="coreset"),
    "derts-feature": derts(estimate="feature", weights="calibrated"),
    "derts-error": derts(drop_score="error"),
    "derts-multiple": derts(drop_rule="multiple"),
}
VARIANTS |= {
    name: {"strategy": {"name": name}} for name in ("us", "ats", "gradmatch", "hardest", "easiest")
}
PLAIN = dict(VARIANTS)
VARIANTS |= {f"{name} clean": {**values, **CLEAN} for name, values in PLAIN.items()}
VARIANTS |= {f"{name} swap25": {**values, **swapped(3.02)} for name, values in PLAIN.items()}
VARIANTS |= {f"{name} swap40": {**values, **swapped(5.62)} for name, values in PLAIN.items()}
VARIANTS["paper clean"] = {**PRESETS["paper"], **CLEAN}
USUAL = ["random", "paper", "derts", "random clean", "paper clean", "derts clean"]


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
    parser.add_argument("--shot", type=int, default=5)
    parser.add_argument("--class-budget", type=int, default=0)
    parser.add_argument(
        "--checkpoints", type=Path, help="folder for a run folder per learner and variant"
    )
    options = parser.parse_args()
    tables = open_data(options.data)
    everything = Comparison.load(options.out) if options.out.exists() else Comparison()
    done = {(run["learner"], run["variant"], run["seed"]) for run in everything.results}
    for learner in options.learners:
        base = with_values(
            apply_presets(options.preset),
            {
                "data": Path(options.data).name,
                "learner": {"name": learner},
                "tasks": {
                    "noise": "tasks",
                    "noisy_fraction": 0.6,
                    "shot": options.shot,
                    "class_budget": options.class_budget,
                },
                "strategy": {
                    "warmup": options.warmup,
                    "pool": options.pool,
                    "selects": "always",  # or variants of it would not differ on clean tasks
                },
                "evaluation": {"split": options.split},
                "model": {"width": options.width},
                "updates": options.updates,
                "meta_batch": options.meta_batch,
            },
            "benchmark",
        )

        def record(result: Result, trainer: Trainer, learner: str = learner) -> None:
            result["learner"] = learner
            everything.results.append(result)
            noise, dropped = result["noise"], result["dropped_share"]
            kept = "" if noise["kept"] is None else f", kept {100 * noise['kept']:.1f}% wrong"
            kept += "" if dropped is None else f", dropped {100 * dropped:.1f}%"
            print(
                f"{learner} {result['variant']} seed {result['seed']}: {result['accuracy']:.2f} ± "
                f"{result['interval']:.2f}, {result['ms_per_update']:.1f} ms per update, "
                f"selection {100 * result['selection_share']:.1f}%{kept}",
                flush=True,
            )
            everything.save(options.out, machine=machine(str(trainer.device)), code=code_version())
            if options.checkpoints is not None and result["seed"] == 0:
                name = f"{learner}-{result['variant'].replace(' ', '-')}"
                config = replace(trainer.config, data=options.data)
                run = Run.create(options.checkpoints / name, config, overwrite=True)
                save_checkpoint(run.path / "checkpoints", trainer.update, trainer.state_dict())

        for seed in options.seeds:
            missing = [name for name in options.variants if (learner, name, seed) not in done]
            chosen = {name: VARIANTS[name] for name in missing}
            compare(base, chosen, [seed], tables, after_run=record)


if __name__ == "__main__":
    main()
