"""How even are pools of tasks? `derts.selection.evenness` along the training of random sampling.

    derts data prepare PACKS stores/mini42 --size 42
    python benchmarks/even_pools.py --data stores/mini42 --out results/even-pools-cpu.json

`--strategy.selects where-it-pays` takes a pool for even where that is at least 0.8. Random
sampling trains a learner on clean tasks: mini-ImageNet at 42×42 pixels (all classes, 16 of them, 16
turned, one shot; images seen anew) and glyphs, even and redundant (redundant_pools.py). Along the
way pools are drawn, and the least and largest evenness of ten told. One line per learner and kind.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

from redundant_pools import Redundant, clean_demo
from validation_curves import SEEN_ANEW, add_to_file

from derts.config import TrainConfig
from derts.config_file import Values, with_values
from derts.data import ImageTable, open_data
from derts.gradients import estimate_pool
from derts.selection.evenness import LOOKED_AT, evenness
from derts.selection.strategy import Draw
from derts.tasks.randomness import generator
from derts.training import Trainer

PHOTOS: Values = {
    **SEEN_ANEW,
    "tasks": {"query": 5},
    "model": {"width": 32},
    "learner": {"distance_divisor": 16.0},
    "updates": 4000,
    "meta_batch": 4,
}
KINDS: dict[str, Values] = {
    "photos": {},
    "photos, one shot": {"tasks": {"shot": 1}},
    "photos, 16 classes": {"tasks": {"class_budget": 16}},
    "photos, 16 classes, as they are": {
        "tasks": {"class_budget": 16},
        "augment": {"mirror": False, "shift": 0},
    },
    "photos, 16 classes, turned": {"tasks": {"class_budget": 16, "turned": True}},
    "glyphs": {},
    "glyphs, redundant": {},
}
LOOKS = {"photos": (60, 500, 1000, 1500), "glyphs": (60, 120, 200, 300)}
POOLS = 10


def of_pool(trainer: Trainer, draw: Draw, number: int) -> float:
    """Of one pool, by the preset's estimate; no more tasks than evenness looks at."""
    settings = trainer.config.strategy
    pool = draw(LOOKED_AT, "pool", number)
    found = estimate_pool(trainer.learner, trainer.images, pool, (settings.estimate,))
    rows = found.gradients[settings.estimate]
    return evenness(rows, generator((trainer.config.seed, "even", number)))


def follow(config: TrainConfig, tables: dict[str, ImageTable], kind: str) -> dict[int, list[float]]:
    """Of some pools at every look, sorted."""
    trainer = Trainer(config, tables)
    draw: Draw = trainer.draw
    if "redundant" in kind:
        trainer.context.draw = draw = Redundant(trainer.images, config)
    found = {}
    for update in LOOKS[kind.split(",")[0]]:
        trainer.train(until=update)
        values = [of_pool(trainer, draw, POOLS * update + number) for number in range(POOLS)]
        found[trainer.update] = sorted(round(value, 3) for value in values)
    return found


def main() -> None:
    """Every learner and kind of task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="a store of mini-ImageNet; without it, glyphs alone")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--learners", nargs="+", default=["anil", "protonet"])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it runs")
    options = parser.parse_args()
    demo, glyphs = clean_demo(options.quick)
    photos = open_data(options.data) if options.data else None
    base = with_values(TrainConfig(), PHOTOS, "benchmark")
    for kind, learner in product(options.kinds, options.learners):
        of_photos = kind.startswith("photos")
        if of_photos and photos is None:
            continue
        config = with_values(base if of_photos else demo, KINDS[kind], kind)
        config = with_values(config, {"learner": {"name": learner}}, "benchmark")
        found = follow(config, (photos or {}) if of_photos else glyphs, kind)
        told = [f"{values[0]:.2f} to {values[-1]:.2f}" for values in found.values()]
        print(f"{kind}, {learner}: {', '.join(told)}", flush=True)
        names = {"kind": kind, "learner": learner}
        add_to_file(options.out, names, {"evenness": found}, "cpu")


if __name__ == "__main__":
    main()
