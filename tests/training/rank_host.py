"""Trains in float64 for a few updates; run by torchrun, or alone, from test_distributed.py.

Arguments: a folder. Writes its rank's weights for each learner and strategy, and what was logged.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from derts.data import glyphs
from derts.distributed import joined
from derts.facility_location.two_rounds import select_two_rounds
from derts.selection import UniformDifficulty
from derts.training import Trainer, label_looks
from tests.tiny import tiny

STRATEGIES = ("random", "derts", "us", "ats")
COMBINATIONS = [
    (learner, strategy)
    for learner in ("anil", "maml", "protonet")
    for strategy in STRATEGIES
    if (learner, strategy) != ("protonet", "ats")  # ats needs a learner that takes gradient steps
] + [("protonet", "trust"), ("anil", "pieces")]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    label_looks.FEWEST_UPDATES, label_looks.MANY_WRONG = 30, 0.0  # always leave out
    tables = glyphs(characters=40, images_per_character=6)
    train = tables["train"]
    wrong = torch.where(torch.arange(len(train)) % 4 == 0, train.labels.roll(6), train.labels)
    mislabelled = {**tables, "train": replace(train, labels=wrong)}
    with joined(torch.device("cpu")) as group:
        rows = torch.randn(600, 4, generator=torch.Generator().manual_seed(0))
        picks = select_two_rounds(rows, 20, shares=2, group=group).indices
        torch.save(picks, folder / f"picks-{group.rank}of{group.size}.pt")
        for learner, strategy in COMBINATIONS:
            trust = strategy == "trust"
            name = {"trust": "derts", "pieces": "random"}.get(strategy, strategy)
            config = tiny(
                tasks={"way": 2, "noise": "none" if trust else "tasks"},
                hardware={"device": "cpu"},
                evaluation={"tasks": 11},
                learner={"name": learner, "inner_steps": 2},
                augment={"horizontal_flip": True, "translation": 2} if strategy == "us" else {},
                # 13 tasks of which 7 are kept: batches of 5 and 2, the second too small to share
                strategy={"name": name, "warmup": 3, "pool": 13},
                updates=30 if trust else 8,  # two whole rounds and a half
                meta_batch=5,
            )
            logged: list[float] = []

            def log(event: dict[str, Any], to: list[float] = logged) -> None:
                to.append(event.get("loss", 0.0))

            pieces = 3 if strategy == "pieces" else 1
            trainer = Trainer(config, mislabelled if trust else tables, log, group, pieces=pieces)
            assert (trainer.looks is not None) == trust
            if isinstance(trainer.strategy, UniformDifficulty):
                trainer.strategy.unweighted = 3
            trainer.learner.double()
            trainer.train()
            if trainer.looks is not None:
                assert trainer.looks.done == 4
                logged += trainer.looks.labels.tolist()
            found = {
                "learner": trainer.learner.state_dict(),
                "losses": logged,
                "accuracies": list(trainer.evaluate("test").accuracies),
                "tasks": trainer.tasks_trained,
            }
            name = f"{learner}-{strategy}-{group.rank}of{group.size}.pt"
            torch.save(found, folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
