"""Trains in float64 for a few updates; run by torchrun, or alone, from test_distributed.py.

Arguments: a folder. Writes its rank's weights for each learner and strategy, and what was logged.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from derts.config import (
    AugmentConfig,
    EvaluationConfig,
    HardwareConfig,
    LearnerConfig,
    ModelConfig,
    StrategyConfig,
    TaskConfig,
    TrainConfig,
)
from derts.data import glyphs
from derts.distributed import joined
from derts.facility_location.two_rounds import select_two_rounds
from derts.selection import UniformDifficulty
from derts.training import Trainer

SMALL = TrainConfig(
    tasks=TaskConfig(way=2, shot=1, query=2, noise="tasks"),
    model=ModelConfig(width=4),
    hardware=HardwareConfig(device="cpu"),
    evaluation=EvaluationConfig(tasks=11, query=3),
    updates=20,
    meta_batch=5,
    log_every=5,
)
STILL = AugmentConfig()
STRATEGIES = ("random", "derts", "us", "ats")
COMBINATIONS = [
    (learner, strategy, "shared")
    for learner in ("anil", "maml", "protonet")
    for strategy in STRATEGIES
    if (learner, strategy) != ("protonet", "ats")  # ats needs a learner that takes gradient steps
] + [("anil", "random", "task")]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    tables = glyphs(characters=40, images_per_character=6)
    with joined(torch.device("cpu")) as group:
        rows = torch.randn(600, 4, generator=torch.Generator().manual_seed(0))
        picks = select_two_rounds(rows, 20, shares=2, group=group).indices
        torch.save(picks, folder / f"picks-{group.rank}of{group.size}.pt")
        for learner, strategy, batch_norm in COMBINATIONS:
            config = replace(
                SMALL,
                learner=LearnerConfig(learner, inner_steps=2),  # type: ignore[arg-type]
                model=ModelConfig(width=4, batch_norm=batch_norm),  # type: ignore[arg-type]
                augment=AugmentConfig(horizontal_flip=True, translation=2)
                if strategy == "us"
                else STILL,
                # 13 tasks of which 7 are kept: batches of 5 and 2, the second too small to share
                strategy=StrategyConfig(strategy, warmup=3, pool=13, ratio=0.5),  # type: ignore[arg-type]
            )
            logged: list[float] = []

            def log(event: dict[str, Any], to: list[float] = logged) -> None:
                to.append(event.get("loss", 0.0))

            trainer = Trainer(config, tables, log, group)
            if isinstance(trainer.strategy, UniformDifficulty):
                trainer.strategy.unweighted = 3
            trainer.learner.double()
            trainer.train()
            found = {
                "learner": trainer.learner.state_dict(),
                "losses": logged,
                "accuracies": list(trainer.evaluate("test").accuracies),
                "tasks": trainer.tasks_trained,
            }
            name = f"{learner}-{strategy}-{batch_norm}-{group.rank}of{group.size}.pt"
            torch.save(found, folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
