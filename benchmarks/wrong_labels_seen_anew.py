"""Whether wrong labels cost more, and mending gains more, where images are not learnt by heart.

    derts data prepare PACKS stores/mini42 --size 42
    python benchmarks/wrong_labels_seen_anew.py --data stores/mini42 \\
        --out results/wrong-labels-seen-anew-cpu.json

mini-ImageNet, validation classes, small enough for a CPU: 42×42 pixels, CNN4-32, all 64 training
classes with 50 images each, 2,000 updates of four tasks, so that every image is seen about 250
times, as often as in 3,000 updates of table 4. Tasks as they are or with 25% or 40% of labels
swapped; images as they are or mirrored and moved anew in every update. A call adds its runs to the
file: what is there was made by several, with --learners, --tasks, --images, --strategies, --seeds.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import torch
from validation_curves import SEEN_ANEW, arguments, prepared, write_curves

from derts.config_file import PRESETS, Values, with_values
from derts.data import ImageTable

IMAGES_PER_CLASS = 50
BASE: Values = {
    "tasks": {"query": 15},
    "model": {"width": 32},
    "learner": {"distance_divisor": 16.0},
    "strategy": {"warmup": 60, "pool": 480, "pool_images": 1600, "selects": "always"},
    "evaluation": {"split": "val", "tasks": 300, "query": 10},
    "updates": 2000,
    "meta_batch": 4,
}
TASKS: dict[str, Values] = {
    "clean": {},
    "25% swapped": {"tasks": {"noise": "swap", "swap_rate": 3.02}},
    "40% swapped": {"tasks": {"noise": "swap", "swap_rate": 5.62}},
}
IMAGES: dict[str, Values] = {"as they are": {}, "seen anew": SEEN_ANEW}
STRATEGIES: dict[str, Values] = {
    "random": {},
    "derts": PRESETS["derts"],
    "derts, no weights": {"strategy": {"name": "derts", "weights": "none"}},
    "derts, pools of all images": {"strategy": {"name": "derts", "pool_images": 0}},
    "derts, tasks at random": {
        "strategy": {"name": "derts", "engine": "uniform", "weights": "none"}
    },
}


def first_of_each_class(table: ImageTable, count: int) -> ImageTable:
    """A table of the first `count` images of every class."""
    kept = torch.cat([indices[:count] for indices in table.class_indices()])
    return replace(table, images=table.gather(kept), labels=table.labels[kept])


def main() -> None:
    """Every seed, learner, kind of tasks, way to see images and strategy."""
    parser = arguments(__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--images", nargs="+", default=list(IMAGES), choices=IMAGES)
    parser.add_argument("--strategies", nargs="+", default=["random", "derts"], choices=STRATEGIES)
    options, base, tables = prepared(parser, BASE)
    tables["train"] = first_of_each_class(tables["train"], IMAGES_PER_CLASS)
    runs = []
    for seed, learner, tasks, images, strategy in product(
        options.seeds, options.learners, options.tasks, options.images, options.strategies
    ):
        names = {"learner": learner, "tasks": tasks, "images": images, "strategy": strategy}
        config = with_values(base, {"learner": {"name": learner}, "seed": seed}, "benchmark")
        for values in (TASKS[tasks], IMAGES[images], STRATEGIES[strategy]):
            config = with_values(config, values, "benchmark")
        runs.append(({**names, "seed": seed}, config, tables))
    write_curves(runs, options.out)


if __name__ == "__main__":
    main()
