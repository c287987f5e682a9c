"""Training runs small enough for a CPU, with their accuracy on validation classes along the way.

What the programs few_classes.py and wrong_labels_seen_anew.py have in common, and even_pools.py.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from derts.config import TrainConfig
from derts.config_file import Values, as_values, with_values
from derts.data import ImageTable, glyphs, open_data
from derts.provenance import code_version, machine
from derts.training import Trainer

LOOKS = 8
SEEN_ANEW: Values = {"augment": {"mirror": True, "shift": 4}}
SMALL: Values = {
    "tasks": {"query": 5, "class_budget": 0},
    "model": {"width": 4},
    "updates": 8,
    "strategy": {"warmup": 2, "pool": 20},
    "evaluation": {"tasks": 5},
}


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Options of such a program."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", help="a store of mini-ImageNet; --quick: built-in glyphs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--learners", nargs="+", default=["anil", "protonet"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it runs")
    return parser


def prepared(
    parser: argparse.ArgumentParser, base: Values
) -> tuple[argparse.Namespace, TrainConfig, dict[str, ImageTable]]:
    """The options given, the config that all runs begin with, and the images."""
    options = parser.parse_args()
    if not options.quick and options.data is None:
        parser.error("--data is missing: a store of mini-ImageNet that derts data prepare made")
    config = with_values(TrainConfig(), base, "benchmark")
    if not options.quick:
        named = with_values(config, {"data": Path(options.data).name}, "benchmark")
        return options, named, open_data(options.data)
    config = with_values(with_values(config, SMALL, "--quick"), {"data": "glyphs-60x15"}, "--quick")
    return options, config, glyphs(characters=60, images_per_character=15)


def write_curves(
    runs: Iterable[tuple[dict[str, Any], TrainConfig, dict[str, ImageTable]]], out: Path
) -> None:
    """Train each config on its images: a line, and an entry of the file under its names.

    Entries of other names that the file has already stay.
    """
    for names, config, tables in runs:
        trainer = Trainer(config, tables)
        found = {}
        for number in range(1, LOOKS + 1):
            trainer.train(until=config.updates * number // LOOKS)
            found[trainer.update] = round(trainer.evaluate("val").mean, 4)
        shown = " ".join(f"{value:.1f}" for value in found.values())
        print(f"{', '.join(map(str, names.values()))}: {shown}", flush=True)
        entry = {"validation": found, "config": as_values(trainer.config)}
        add_to_file(out, names, entry, str(trainer.device))


def add_to_file(out: Path, names: dict[str, Any], values: dict[str, Any], device: str) -> None:
    """An entry of a result file, in place of one of the same names."""
    done: list[dict[str, Any]] = json.loads(out.read_text())["runs"] if out.exists() else []
    done = [one for one in done if any(one.get(name) != names[name] for name in names)]
    about = {"machine": machine(device), "code": code_version()}
    done.append({**names, **values, **about})
    out.write_text(json.dumps({"runs": done}, indent=1) + "\n", encoding="utf-8")
