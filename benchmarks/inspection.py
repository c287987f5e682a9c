"""How many of the images that `derts inspect` lists first really are mislabelled?

    python benchmarks/inspection.py --out results/inspection-cpu.json

Exchanges 10% of the labels of glyphs at random, trains a ProtoNet on them, and ranks the images as
the command does: by up to 20 classes and 20 examples at once.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import derts
from derts.config_file import with_values
from derts.labels.inspection import FIRST, enough_tasks, look_at, rank_images
from derts.provenance import code_version, machine
from derts.tasks import TaskSampler, generator

SETTINGS: dict[str, Any] = {
    "tasks": {"query": 5},
    "model": {"width": 16},
    "learner": {"distance_divisor": 4.0},
    "updates": 120,
    "meta_batch": 8,
}


def mislabel(table: derts.ImageTable, seed: int) -> tuple[derts.ImageTable, set[int]]:
    """The table with a tenth of its labels exchanged for another, and which images these are."""
    random = generator((seed, "swap"))
    bad = torch.randperm(len(table), generator=random)[: len(table) // 10]
    classes = len(table.class_names)
    labels = table.labels.clone()
    labels[bad] = (labels[bad] + torch.randint(1, classes, bad.shape, generator=random)) % classes
    return replace(table, labels=labels), set(bad.tolist())


def measure(strategy: str, seed: int) -> dict[str, Any]:
    """Train on mislabelled images and count them among the first that are listed."""
    tables = dict(derts.glyphs(characters=100, images_per_character=20, seed=seed))
    tables["train"], bad = mislabel(tables["train"], seed)
    chosen = {
        "seed": seed,
        "strategy": {"name": strategy, "warmup": 40, "pool": 200, "select": "greedy"},
    }
    config = with_values(derts.TrainConfig(), {**SETTINGS, **chosen}, "benchmark")
    trainer = derts.Trainer(config, tables)
    trainer.train()
    images, learner = tables["train"], trainer.learner
    smallest = min(len(group) for group in images.class_indices())
    way, shot = 20, min(20, smallest - 5)
    assert isinstance(learner, derts.ProtoNet)
    learner = learner.with_way(way)
    tasks = enough_tasks(images, way, 5)
    pool = TaskSampler(images).draw(tasks=tasks, way=way, shot=shot, query=5, seed=1)
    ranked = rank_images(images, pool, look_at(learner, images, pool))
    found = sum(one.index in bad for one in ranked[:FIRST])
    return {
        "strategy": strategy,
        "seed": seed,
        "images": len(images),
        "mislabelled": len(bad),
        "first": FIRST,
        "mislabelled_among_first": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = [measure(name, seed) for seed in options.seeds for name in ("random", "derts")]
    about = {"code": code_version(), "machine": machine(), "settings": SETTINGS}
    options.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        print(f"{row['strategy']}, seed {row['seed']}: {row['mislabelled_among_first']} of {FIRST}")


if __name__ == "__main__":
    main()
