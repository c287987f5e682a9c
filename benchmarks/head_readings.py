r"""What the paper's estimate before adaptation tells of an ANIL task, by how the head starts.

    derts data prepare downloads/mini-imagenet mini32 --size 32
    python benchmarks/head_readings.py --data mini32 --out results/head-readings-cpu.json

The paper does not say how its head starts, nor when it is asked. `logit-theta` is read from a head
that starts at zero and from one that starts as torch starts a linear layer, before training and
after outer updates of random tasks; `logit`, the same after adaptation, is beside them. One row per
seed, start, update and noise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tyro
from timing import save_results

from derts.config_file import Values, apply_presets, with_values
from derts.data import Table, open_data
from derts.diagnosis import auroc, diagnose
from derts.gradients import estimate_pool
from derts.training import Trainer

NOISES: dict[str, Values] = {
    "clean": {"noise": "none"},
    "40% of labels swapped": {"noise": "swap:5.62"},
    "60% of tasks mislabelled": {"noise": "tasks:0.6"},
}


def readings(trainer: Trainer, noise: str, tasks: int) -> list[dict[str, Any]]:
    """How long the estimates of a pool are, and how far they agree with the exact gradients."""
    pool, learner = trainer.draw(tasks, "readings", 0), trainer.learner
    names = ("logit-theta", "logit")
    found = estimate_pool(learner, trainer.images, pool, names).gradients
    whole = diagnose(learner, trainer.images, pool)
    by_name = {row["estimate"]: row for row in whole["estimates"]}
    wrong = pool.mislabelled() > 0
    rows = []
    for name in names:
        norms = found[name].norm(dim=1)
        row = {
            "noise": noise,
            "estimate": name,
            "norm": float(norms.mean()),
            "rank_correlation": by_name[name]["rank_correlation"],
            "error": by_name[name]["error"]["counts"],
            "random_error": whole["random"]["mean"],
        }
        mixed = bool(wrong.any()) and not bool(wrong.all())
        rows.append(row | ({"auroc": auroc(norms, wrong)} if mixed else {}))
    return rows


def main(
    data: str,
    out: Path,
    seeds: tuple[int, ...] = (0, 1, 2),
    updates: tuple[int, ...] = (0, 150, 500),
    tasks: int = 320,
    width: int = 32,
    meta_batch: int = 8,
) -> None:
    """Train by random sampling with both starts; read the estimates at some updates."""
    tables: dict[str, Table] = dict(open_data(data))
    results: list[dict[str, Any]] = []
    for seed in seeds:
        for noise, values in NOISES.items():
            for head in ("zeros", "random"):
                recipe: Values = {
                    "tasks": values,
                    "learner": {"name": "anil", "smoothing": 0.0, "head": head},
                    "model": {"width": width},
                    "updates": 10_000,
                    "meta_batch": meta_batch,
                    "seed": seed,
                }
                config = with_values(apply_presets([]), recipe, "benchmark").resolved()
                trainer = Trainer(config, tables)
                for update in updates:
                    trainer.train(update)
                    about = {"seed": seed, "head": head, "update": update}
                    results += [about | row for row in readings(trainer, noise, tasks)]
                    print(*(f"{key} {value}" for key, value in results[-2].items()), flush=True)
                save_results(out, results)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
