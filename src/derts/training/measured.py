"""A learner under training, as it is measured: on any split, and by which of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from derts.clock import Clock
from derts.config import TrainConfig
from derts.data.table import ImageTable
from derts.distributed import Group
from derts.errors import DertsError
from derts.evaluation import Evaluation, evaluate
from derts.learners.base import Learner
from derts.tasks.pool import TaskPool
from derts.training.best import Best
from derts.training.drawing import evaluation_tasks
from derts.training.hardware import place_table


class Measured:
    """What a Trainer knows of its accuracy. `best` are weights to be judged by, if not the last."""

    config: TrainConfig
    tables: Mapping[str, ImageTable]
    learner: Learner[Any]
    device: torch.device
    group: Group
    clock: Clock
    update: int

    def __init__(self) -> None:
        self.best: Best | None = None
        self._evaluation_tasks: dict[tuple[str, int | None], TaskPool] = {}

    def split(self, name: str) -> ImageTable:
        """A split of the data by name."""
        if name not in self.tables:
            raise DertsError(
                f"the data has no split {name!r}, only {', '.join(self.tables)}: prepare one"
            )
        return self.tables[name]

    def evaluate(self, split: str, shot: int | None = None) -> Evaluation:
        """Accuracy on the fixed tasks of a split."""
        with self.clock.phase("evaluation"):
            images = place_table(self.split(split), self.device, self.config.hardware)
            if (split, shot) not in self._evaluation_tasks:
                self._evaluation_tasks[split, shot] = evaluation_tasks(self.config, images, shot)
            pool = self._evaluation_tasks[split, shot]
            mine = evaluate(self.learner, images, pool[self.group.part(len(pool))])
            if self.group.alone:
                return mine
            accuracies = torch.tensor(mine.accuracies, dtype=torch.float64)
            everyone = self.group.gather(accuracies, len(pool)).tolist()
            return Evaluation(tuple(everyone), mine.split)

    def validation_is_due(self) -> bool:
        """Whether this update is one at which to look at validation classes."""
        every, by_best = self.config.validate_every, self.config.evaluation.weights == "best"
        at_end = by_best and self.update == self.config.updates
        return every > 0 and (self.update % every == 0 or at_end)

    def validate(self) -> Evaluation:
        """Accuracy on validation classes; the best weights are kept if the run is judged by them.

        Not those of the warm-up, when the strategy has done nothing yet. `train` does not validate
        by itself: who calls it in stretches asks `validation_is_due` between them.
        """
        found, settings = self.evaluate("val"), self.config
        begun = self.update > settings.strategy.warmup or self.update == settings.updates
        if settings.evaluation.weights == "best" and begun:
            self.best = Best.better(self.best, self.learner, self.update, found.mean)
        return found

    def judge(self, split: str) -> Evaluation:
        """Accuracy on a split of the weights that the run is judged by: the last, or the best.

        Where none were validated yet, the present ones.
        """
        if self.best is None:
            return self.evaluate(split)
        with self.best.in_use(self.learner):
            return self.evaluate(split)
