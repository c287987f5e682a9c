"""An update under a limit on memory: in how many pieces, how long, how much it takes.

    python benchmarks/pieces.py --out results/pieces-cpu.json     # or results/pieces-h200.json
    python benchmarks/pieces.py --quick                           # tiny: shows that it runs

ProtoNet on random pixels. Every case is a process of its own, so that its peak is its own. Without
a limit the case is uncut. On a GPU the limit is enforced (torch gives no more) and times are by the
clock; on a CPU they are of one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from timing import save_results, seconds

from derts.config import TrainConfig
from derts.config_file import apply_presets, with_values
from derts.data import ImageTable
from derts.hardware import (
    choose_device,
    keep_freed_memory,
    limit_memory,
    peak_memory,
    wait_without_spinning,
)
from derts.training import Trainer
from derts.training.memory import GIB, plan_pieces

Case = dict[str, Any]
SIDE = 84
GPU = {"cnn4": (64, 32, 15, [None, 6.0, 4.0]), "resnet12": (64, 32, 15, [None, 24.0, 16.0])}
CPU = {"cnn4": (32, 8, 5, [None, 2.5, 1.5]), "resnet12": (16, 4, 5, [None, 2.0, 1.5])}
QUICK = {"cnn4": (4, 2, 2, [None, 0.6])}


def cases(quick: bool) -> list[Case]:
    sizes = QUICK if quick else GPU if torch.cuda.is_available() else CPU
    return [
        {"backbone": backbone, "width": width, "tasks": tasks, "query": query, "limit": limit}
        for backbone, (width, tasks, query, limits) in sizes.items()
        for limit in limits
    ]


def core(trainer: Trainer, repeats: int) -> list[float]:
    """Seconds of one core for an update, which other programs hardly change."""
    torch.set_num_threads(1)
    trainer.step()
    found = []
    for _ in range(repeats):
        start = time.process_time()
        trainer.step()
        found.append(time.process_time() - start)
    return found


def run_case(case: Case, repeats: int) -> Case:
    """Runs in its own process."""
    keep_freed_memory()
    cuda = torch.cuda.is_available()
    values = {
        "model": {"backbone": case["backbone"], "width": case["width"]},
        "tasks": {"query": case["query"]},
        "meta_batch": case["tasks"],
        "evaluation": {"tasks": 2},
        "hardware": {"memory_gib": case["limit"] or 1000.0},
    }
    base = apply_presets(["gpu"]) if cuda else TrainConfig()
    config = with_values(base, values, "benchmark").resolved()
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (640, SIDE, SIDE, 3), generator=random, dtype=torch.uint8)
    images = ImageTable(pixels, torch.arange(640) // 20, tuple(map(str, range(32))))
    device = choose_device(config.hardware.device)
    limit_memory(device, case["limit"])
    pieces = plan_pieces(config, {"train": images}, device)
    trainer = Trainer(config, {"train": images}, pieces=pieces)
    trainer.learner.train()
    each = seconds(trainer.step, repeats, in_a_row=10) if cuda else core(trainer, repeats)
    ms = [1000 * value for value in each]
    return {**case, "pieces": pieces, "ms": ms, "gib": (peak_memory(device) or 0) / GIB}


def main() -> None:
    """Measure all cases in turns; print and write medians and least times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        print(json.dumps(run_case(options.case, options.repeats)))
        return
    wait_without_spinning()  # holds for the processes that are started here
    some = cases(options.quick)
    turns: list[list[Case]] = [[] for _ in some]
    for _ in range(1 if options.quick else options.turns):
        for case, found in zip(some, turns, strict=True):
            words = ["--repeats", str(options.repeats), "--case", json.dumps(case)]
            done = subprocess.run(
                [sys.executable, __file__, *words], capture_output=True, text=True
            )
            if done.returncode:  # such as out of memory
                found.append({**case, "failed": (done.stderr.splitlines() or ["killed"])[-1]})
            else:
                found.append(json.loads(done.stdout.splitlines()[-1]))
    rows = []
    for found in turns:
        row, good = dict(found[0]), [one for one in found if "ms" in one]
        if good:
            times = [value for one in good for value in one["ms"]]
            row |= {"ms": statistics.median(times), "least_ms": min(times), "all_ms": times}
            row["gib"] = max(one["gib"] for one in good)
        print({name: value for name, value in row.items() if name != "all_ms"}, flush=True)
        rows.append(row)
    save_results(options.out, rows)


if __name__ == "__main__":
    main()
