"""What an update on features costs, beside the usual loop over tasks.

    python benchmarks/features.py                 # 32 tasks, 5-way 5 + 15, 1280 features
    python benchmarks/features.py --quick

Prints milliseconds per update and minutes for 1,000: of this process on all its threads, and of
the processor, which other programs on the machine do not add to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

import torch
import tyro
from task_loop import TaskLoop

from derts.config import LearnerConfig, ModelConfig, TrainConfig
from derts.data import FeatureTable
from derts.models import FeatureBackbone
from derts.training import Trainer


@dataclass(frozen=True)
class Options:
    """What to measure."""

    features: int = 1280
    updates: int = 30
    quick: bool = False


def random_features(width: int) -> FeatureTable:
    """64 classes of 100 rows."""
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(64).repeat_interleave(100)
    rows = torch.randn(64, width, generator=random)[labels]
    rows += torch.randn(len(labels), width, generator=random)
    return FeatureTable(rows, labels, tuple(map(str, range(64))))


def timed(name: str, update: Callable[[], object], updates: int) -> None:
    """Print what an update costs."""
    update()
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(updates):
        update()
    each = (time.perf_counter() - wall) / updates
    busy = (time.process_time() - processor) / updates
    text = f"{1000 * each:8.1f} ms, {1000 * busy:8.1f} ms of the processor"
    print(f"{name:<28}{text}; 1,000 updates: {1000 * each / 60:5.1f} minutes", flush=True)


def main(options: Options) -> None:
    """Every small backbone with ProtoNet and ANIL, and the loop over tasks."""
    width, updates = (16, 1) if options.quick else (options.features, options.updates)
    table = random_features(width)
    for learner in ("protonet", "anil"):
        for backbone in ("none", "linear", "mlp"):
            model = ModelConfig(backbone=backbone)
            config = TrainConfig(learner=LearnerConfig(learner), model=model, updates=updates + 1)
            trainer = Trainer(config, {"train": table})
            steps = map(trainer.train, count(1))
            timed(f"{learner} {backbone}", partial(next, steps), updates)
        loop = TaskLoop(learner, FeatureBackbone(width, "linear"), 5, torch.device("cpu"), False)
        pool = trainer.draw(32, "batch", 0)
        timed(f"{learner} linear, task by task", partial(loop.update, table, pool), updates)


if __name__ == "__main__":
    main(tyro.cli(Options))
