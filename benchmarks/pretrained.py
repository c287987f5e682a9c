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

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import derts
from derts.config import ModelConfig, TrainConfig
from derts.data import FeatureTable, Table, open_data, save_table
from derts.evaluation import evaluate
from derts.learners import build_learner
from derts.models.features import FeatureBackbone
from derts.models.pretrained import load_pretrained
from derts.provenance import code_version, machine

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", required=True, help="a store of images")
    parser.add_argument("--features", type=Path, required=True, help="store of features, kept")
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--weights", default="")
    parser.add_argument("--each", type=int, default=40, help="images of every class")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--updates", type=int, default=300, help="of a head (0: train none)")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found: Row = json.loads(options.out.read_text()) if options.out.exists() else {}
    if not options.features.exists():
        found["embedding"] = embed(
            options.data, options.backbone, options.weights, options.each, options.features
        )
    tables = open_data(options.features)
    shape = next(iter(open_data(options.data).values())).item_shape
    found |= {
        "backbone": options.backbone, "data": Path(options.data).name, "image_shape": list(shape),
        "note": "weights pretrained on ImageNet have seen these classes: never beside a paper's",
        "code": code_version(), "machine": machine(),
    }  # fmt: skip
    found["untrained"] = untrained(together(tables), options.tasks)
    found["trained"] = trained(tables, options.updates, options.seeds) if options.updates else []
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
