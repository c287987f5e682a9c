"""What to expect of a pretrained backbone: class means of its features, and a head trained on them.

    derts data prepare mini-imagenet mini
    python benchmarks/pretrained.py --data mini --features rows --out results/pretrained-cpu.json

Some images of every class are embedded once (4,000 of mini-ImageNet: some minutes on two cores)
and kept as a store of features. Without training, tasks are drawn from the classes of all splits
together: nothing is trained, so none of them is a training class. With training, a head learns from
the classes of "train" and is measured on those of "test", beside the untrained features on the same
tasks.

mini-ImageNet's classes are ImageNet's: weights pretrained on ImageNet have seen them. These numbers
tell users what to expect and never stand beside a paper's.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
import tyro
from timing import write_with_code

import derts
from derts.config import ModelConfig, TrainConfig
from derts.data import FeatureTable, Table, open_data, save_table
from derts.evaluation import evaluate
from derts.learners import build_learner
from derts.models.feature_backbone import FeatureBackbone
from derts.models.pretrained import load_pretrained

WAYS, SHOTS, QUERY = (5, 10, 20, 50), (1, 5, 20), 15
Row = dict[str, Any]


def embed(data: str, name: str, weights: str, each: int, destination: Path) -> Row:
    """Embed the first images of every class, and keep them as a store."""
    network, device = load_pretrained(name, weights), torch.device("cpu")
    tables: dict[str, Table] = {}
    begin = time.perf_counter()
    for split, table in open_data(data).items():
        network.check_images(table.item_shape)
        chosen = torch.cat([group[:each] for group in table.class_indices()])
        part = derts.ImageTable(
            table.gather(chosen), table.labels[chosen], table.class_names, split
        )
        tables[split] = network.embed_table(part, device)
    seconds = time.perf_counter() - begin
    save_table(tables, destination)
    count = sum(map(len, tables.values()))
    return {"images": count, "seconds": round(seconds, 1), "per_class": each}


def together(tables: dict[str, Table]) -> FeatureTable:
    """The rows of all splits as one table."""
    names = [name for table in tables.values() for name in table.class_names]
    labels, first = [], 0
    for table in tables.values():
        labels.append(table.labels + first)
        first += len(table.class_names)
    rows = torch.cat([table.items for table in tables.values()])
    return FeatureTable(rows, torch.cat(labels), tuple(names), "all")


def untrained(table: Table, tasks: int) -> list[Row]:
    """Accuracy of class means by classes and images of each."""
    rows = []
    for way in WAYS:
        for shot in SHOTS:
            if way > len(table.class_names):
                continue
            learner = build_learner(
                derts.LearnerConfig(), ModelConfig("none"), way=way, item_shape=table.item_shape
            )
            assert isinstance(learner.backbone, FeatureBackbone)
            learner.backbone.fit(table)
            pool = derts.TaskPool.sample(
                table, tasks=tasks, way=way, shot=shot, query=QUERY, seed=0
            )
            found = evaluate(learner, table, pool)
            rows.append(_row(found, way=way, shot=shot))
            print(rows[-1], flush=True)
    return rows


def trained(tables: dict[str, Table], updates: int, seeds: int) -> list[Row]:
    """Accuracy on test classes of features as they are, and after a head learned from "train"."""
    rows = []
    for learner in ("protonet", "anil"):
        for head in ("linear", "mlp"):
            for seed in range(seeds):
                config = TrainConfig(
                    model=ModelConfig(head),
                    learner=derts.LearnerConfig(learner),
                    updates=updates, seed=seed,
                )  # fmt: skip
                trainer = derts.Trainer(config, tables)
                before = trainer.evaluate("test")
                begin = time.perf_counter()
                trainer.train()
                seconds = round(time.perf_counter() - begin, 1)
                found = _row(trainer.evaluate("test"), way=5, shot=5)
                rows.append(
                    {"learner": learner, "head": head, "seed": seed, "before": before.mean,
                     "updates": updates, "seconds": seconds, **found}
                )  # fmt: skip
                print(rows[-1], flush=True)
    return rows


def _row(found: Any, **about: Any) -> Row:
    return {**about, "accuracy": round(found.mean, 2), "interval": round(found.interval, 2)}


def main(
    data: str,
    features: Path,
    out: Path,
    backbone: str = "efficientnet-lite0",
    weights: str = "",
    each: int = 40,
    tasks: int = 200,
    updates: int = 300,
    seeds: int = 2,
) -> None:
    """Embed `each` images of every class of `data` into `features`; updates 0: train no head."""
    found: Row = json.loads(out.read_text()) if out.exists() else {}
    if not features.exists():
        found["embedding"] = embed(data, backbone, weights, each, features)
    tables = open_data(features)
    shape = next(iter(open_data(data).values())).item_shape
    found |= {
        "backbone": backbone, "data": Path(data).name, "image_shape": list(shape),
        "note": "weights pretrained on ImageNet have seen these classes: never beside a paper's",
    }  # fmt: skip
    found["untrained"] = untrained(together(tables), tasks)
    found["trained"] = trained(tables, updates, seeds) if updates else []
    write_with_code(out, **found)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
