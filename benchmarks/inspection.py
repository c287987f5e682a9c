"""How many of the images that `derts inspect` lists first really are mislabelled?

    python benchmarks/inspection.py --out results/inspection-cpu.json

Exchanges 10% of the labels of glyphs at random, trains on them, and ranks the images as the command
does: by leave-one-out class means in the model's embedding.
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
from derts.labels.inspection import image_features, rank_images
from derts.provenance import code_version, machine
from derts.tasks import generator

FIRST = 100
SETTINGS: dict[str, Any] = {
    "tasks": {"query": 5},
    "model": {"width": 16},
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


def measure(learner: str, seed: int) -> dict[str, Any]:
    """Train on mislabelled images and count them among the first that are listed."""
    tables = dict(derts.glyphs(characters=100, images_per_character=20, seed=seed))
    tables["train"], bad = mislabel(tables["train"], seed)
    values = {**SETTINGS, "seed": seed, "learner": {"distance_divisor": 4.0, "name": learner}}
    trainer = derts.Trainer(with_values(derts.TrainConfig(), values, "benchmark"), tables)
    trainer.train()
    images = tables["train"]
    ranked = rank_images(image_features(trainer.learner, images), images)
    found = [one.index in bad for one in ranked]
    places = [place for place, wrong in enumerate(found, 1) if wrong]
    precision = sum(hits / place for hits, place in enumerate(places, 1)) / len(places)
    return {
        "learner": learner,
        "seed": seed,
        "images": len(images),
        "mislabelled": len(bad),
        "first": FIRST,
        "mislabelled_among_first": sum(found[:FIRST]),
        "average_precision": round(precision, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = [measure(name, seed) for seed in options.seeds for name in ("protonet", "anil")]
    about = {"code": code_version(), "machine": machine(), "settings": SETTINGS}
    options.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        print(f"{row['learner']}, seed {row['seed']}: {row['mislabelled_among_first']} of {FIRST}")


if __name__ == "__main__":
    main()
