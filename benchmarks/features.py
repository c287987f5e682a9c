"""What an update on features costs, beside the usual loop over tasks.

    python benchmarks/features.py --out results/features-cpu.json   # six minutes on two cores
    python benchmarks/features.py --quick

1,000 updates of 32 tasks, 5-way 5 + 15, on 1280 features; of the loop, fewer. Seconds are of this
process on all its threads, and of the processor, which other programs on the machine do not add to.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
import tyro
from task_loop import TaskLoop
from timing import save_results

from derts.config import LearnerConfig, ModelConfig, TrainConfig
from derts.data import FeatureTable
from derts.models import FeatureBackbone
from derts.training import Trainer


def random_features(width: int) -> FeatureTable:
    """64 classes of 100 rows."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(64).repeat_interleave(100)
    rows = torch.randn(64, width, generator=random)[labels]
    rows += torch.randn(len(labels), width, generator=random)
    return FeatureTable(rows, labels, tuple(map(str, range(64))))


def timed(name: str, update: Callable[[], object], updates: int) -> dict[str, Any]:
    """Seconds that some updates take, after one to warm up."""
    update()
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(updates):
        update()
    found = {
        "name": name, "updates": updates, "threads": torch.get_num_threads(),
        "seconds": round(time.perf_counter() - wall, 2),
        "processor_seconds": round(time.process_time() - processor, 2),
        "load_average": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    print(found, flush=True)
    return found


def main(
    features: int = 1280,
    updates: int = 1000,
    loop_updates: int = 30,
    quick: bool = False,
    out: Path | None = None,
) -> None:
    """Every small backbone with ProtoNet and ANIL, and the loop over tasks."""
    if quick:
        features, updates, loop_updates = 16, 1, 1
    table, results = random_features(features), []
    for learner in ("protonet", "anil"):
        for backbone in ("none", "linear", "mlp"):
            model = ModelConfig(backbone=backbone)
            config = TrainConfig(learner=LearnerConfig(learner), model=model, updates=updates + 1)
            trainer = Trainer(config, {"train": table})
            steps = map(trainer.train, count(1))
            results.append(timed(f"{learner} {backbone}", partial(next, steps), updates))
        loop = TaskLoop(learner, FeatureBackbone(features, "linear"), 5, torch.device("cpu"), False)
        pool = trainer.draw(32, "batch", 0)
        update = partial(loop.update, table, pool)
        results.append(timed(f"{learner} linear, task by task", update, loop_updates))
    save_results(out, results)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
