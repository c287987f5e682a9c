r"""What keeps a network from learning few classes by heart: mini-ImageNet, validation classes.

    derts data prepare PACKS stores/mini42 --size 42
    python benchmarks/few_classes.py --data stores/mini42 --out results/few-classes-cpu.json
    python benchmarks/few_classes.py --data stores/mini42 --out results/few-classes-32-cpu.json \
        --classes 32 --variants "random, seen anew" "random, turned classes, seen anew"

Small enough for a CPU: 42×42 pixels, CNN4-32, 4,000 updates of four tasks, which see every image
about 80 times (the runs of table 3, 1,000 times). Accuracy on validation classes along the way, one
line per run; test classes are not looked at. Turned classes: each class four times, its images
upright and turned by 90, 180 and 270 degrees, as in experiments with Omniglot. A call adds its runs
to the file, of which there is one for 16 classes and one for 32.
"""

from __future__ import annotations

from itertools import product

from validation_curves import SEEN_ANEW, arguments, prepared, write_curves

from derts.config_file import PRESETS, Values, with_values

BASE: Values = {
    "tasks": {"query": 5, "class_budget": 16},
    "model": {"width": 32},
    "learner": {"distance_divisor": 16.0},
    "strategy": {"warmup": 60, "pool": 480, "selects": "always"},
    "evaluation": {"split": "val", "tasks": 300, "query": 10},
    "updates": 4000,
    "meta_batch": 4,
}
TURNED: Values = {"tasks": {"turned": True}, **SEEN_ANEW}
VARIANTS: dict[str, Values] = {
    "random": {},
    "random, seen anew": SEEN_ANEW,
    "derts, seen anew": {**PRESETS["derts"], **SEEN_ANEW},
    "paper, seen anew": {**PRESETS["paper"], **SEEN_ANEW},
    "confused pairs, seen anew": {
        "strategy": {"name": "derts", "engine": "confused", "weights": "none"},
        **SEEN_ANEW,
    },
    "random, turned classes, seen anew": TURNED,
    "derts, turned classes, seen anew": {**PRESETS["derts"], **TURNED},
}


def main() -> None:
    """Every learner, seed and variant."""
    parser = arguments(__doc__)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--classes", type=int, default=16, choices=(16, 32))
    options, base, tables = prepared(parser, BASE)
    if not options.quick:
        base = with_values(base, {"tasks": {"class_budget": options.classes}}, "--classes")
    runs = []
    for learner, seed, variant in product(options.learners, options.seeds, options.variants):
        values = {"learner": {"name": learner}, "seed": seed}
        config = with_values(with_values(base, VARIANTS[variant], variant), values, "benchmark")
        names = {"learner": learner, "variant": variant, "seed": seed}
        runs.append((names, config, tables))
    write_curves(runs, options.out)


if __name__ == "__main__":
    main()
