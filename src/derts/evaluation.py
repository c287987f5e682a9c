"""Stage 10: accuracy on a fixed, seeded set of clean tasks."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from derts.data.table import Table
from derts.hardware import send
from derts.learners.base import Learner, check_inputs, query_losses
from derts.learners.pool_features import DistinctImages, evaluation_mode, task_features
from derts.tasks.pool import TaskPool


@dataclass(frozen=True)
class Evaluation:
    """Accuracy of each test task, in percent, and what follows from it.

    >>> str(Evaluation((50.0, 70.0, 60.0), split="test"))
    '60.00 ± 11.32 (3 tasks)'
    """

    accuracies: tuple[float, ...]
    split: str

    @property
    def mean(self) -> float:
        """Mean accuracy, percent."""
        return sum(self.accuracies) / len(self.accuracies)

    @property
    def interval(self) -> float:
        """Half-width of the 95% interval over test tasks: 1.96 standard errors."""
        count, mean = len(self.accuracies), self.mean
        variance = sum((value - mean) ** 2 for value in self.accuracies) / max(count - 1, 1)
        return 1.96 * math.sqrt(variance / count)

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.interval:.2f} ({len(self.accuracies)} tasks)"


def evaluate(learner: Learner[Any], images: Table, pool: TaskPool) -> Evaluation:
    """Adapt to each task's support set and classify its query set, so that no test image
    influences another: running statistics are read, never written.
    """
    check_inputs(learner, images, pool)
    percent = accuracies(learner, images, pool).double().mul(100).cpu()
    return Evaluation(tuple(round(value, 4) for value in percent.tolist()), images.split)


def gain_note(trained: Evaluation, before: Evaluation) -> str:
    """What training changed on the same tasks, in words.

    >>> gain_note(Evaluation((50.0, 70.0), "test"), Evaluation((51.0, 71.0), "test"))
    'class means without training reach 61.00%: training did not make it better (-1.00 ± 0.00)'
    """
    pairs = zip(trained.accuracies, before.accuracies, strict=True)
    change = Evaluation(tuple(after - first for after, first in pairs), trained.split)
    amount = f"({change.mean:+.2f} ± {change.interval:.2f})"
    verb = "made" if change.mean > change.interval else "did not make"
    reached = f"class means without training reach {before.mean:.2f}%"
    return f"{reached}: training {verb} it better {amount}"


def accuracies(
    learner: Learner[Any], images: Table, pool: TaskPool, distinct: DistinctImages | None = None
) -> torch.Tensor:
    """Share of each task's query images that are classified rightly, [N], on the learner's device.

    >>> import derts
    >>> table = derts.ImageTable(torch.zeros(40, 16, 16, 1, dtype=torch.uint8),
    ...                          torch.arange(40) // 10, tuple("abcd"))
    >>> pool = TaskPool.sample(table, tasks=2, way=4, shot=1, query=2, seed=0)
    >>> from derts.models import CNN4
    >>> learner = derts.ProtoNet(CNN4(channels=1, image_size=(16, 16), width=2), way=4)
    >>> accuracies(learner, table, pool)
    tensor([0.2500, 0.2500])
    """
    learner.check_way(pool)
    found = []
    with evaluation_mode(learner):
        for part in task_features(learner, images, pool, distinct=distinct):
            adapted = learner.adapt(part.support, send(part.pool.support_labels, learner.device))
            labels = send(part.pool.query_labels, learner.device)
            found.append(query_losses(learner.logits(adapted, part.query), labels)[1])
    return torch.cat(found)
