"""What ATS knows of a task: its loss, and whether its support and query gradients agree.

All tasks are looked at together, without touching the learner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from derts.data.table import ImageTable
from derts.hardware import send
from derts.learners.anil import ANIL
from derts.learners.base import query_losses
from derts.learners.embedding import (
    Named,
    TaskFeatures,
    evaluation_mode,
    named_images,
    task_features,
)
from derts.learners.maml import MAML
from derts.tasks.pool import TaskPool

Layers = list[torch.Tensor]
LARGE = 1e4


class TaskSignals(NamedTuple):
    """The signals of T tasks, for the L tensors that the inner loop adapts.

    losses   [T]     query loss after adaptation
    cosines  [T, L]  between the support gradient before and the query gradient after adaptation
    norms    [T, L]  of the query gradient
    """

    losses: torch.Tensor
    cosines: torch.Tensor
    norms: torch.Tensor

    def finite_on(self, device: torch.device) -> TaskSignals:
        """The same on a device; what overflowed is large, or nothing where it has no value."""
        on_device = (values.float().to(device) for values in self)
        return TaskSignals(*(values.nan_to_num(0.0, LARGE, -LARGE) for values in on_device))


class ObservedTasks(NamedTuple):
    """Tasks whose signals are known, on the learner's device.

    loss(which) is the mean outer loss of the tasks at indices `which`, with a graph. With pool and
    indices on a GPU, neither it nor pool[which] makes the program wait.
    """

    pool: TaskPool
    signals: TaskSignals
    loss: Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def running_statistics(learner: ANIL | MAML) -> Iterator[None]:
    """BatchNorm reads its running statistics and leaves them alone; restored afterwards."""
    was_training = learner.training
    learner.eval()
    try:
        with learner.embedding.fast_math():
            yield
    finally:
        learner.train(was_training)


def observe_tasks(
    learner: ANIL | MAML,
    images: ImageTable,
    pool: TaskPool,
    named: Named | None = None,
) -> ObservedTasks:
    """Signals of all tasks, and their losses for later; call within `running_statistics`.

    ANIL embeds every different image once, with a graph: whichever tasks' loss is asked for, the
    forward pass has been made. `named`: the `named_images` of the pool, where they are known.
    """
    if isinstance(learner, MAML):
        signals = task_signals(learner, images, pool)
        here = pool.to(learner.device)
        return ObservedTasks(
            here, signals, lambda which: learner.outer_loss(images, here[which]).loss
        )
    if named is None:
        named = named_images(torch.cat((pool.support, pool.query), 1), len(images))
    features = learner.features(images.gather(named[0])[None])[0]
    places = send(named[1], learner.device)
    here = pool.to(learner.device)
    shots = pool.support.shape[1]

    def loss(which: torch.Tensor) -> torch.Tensor:
        support, query = features[places[which]].tensor_split([shots], 1)
        adapted = learner.adapt(support, here.support_labels[which])
        return query_losses(learner.logits(adapted, query), here.query_labels[which])[0].mean()

    with torch.no_grad():
        support, query = features[places].tensor_split([shots], 1)
        signals = _signals(*_head_gradients(learner, TaskFeatures(here, support, query)))
    return ObservedTasks(here, signals, loss)


def task_signals(learner: ANIL | MAML, images: ImageTable, pool: TaskPool) -> TaskSignals:
    """Losses, cosines and norms of every task, without touching the learner.

    ANIL's inner loop adapts the head, so its layers are the head's weight and bias, whose
    gradients are written out; MAML's are all parameters, through torch.func.
    """
    parts = []
    with evaluation_mode(learner):
        for part in task_features(learner, images, pool):
            found = (
                _head_gradients(learner, part)
                if isinstance(learner, ANIL)
                else _all_gradients(learner, part)
            )
            parts.append(_signals(*found))
    return TaskSignals(*(torch.cat(values) for values in zip(*parts, strict=True)))


def _signals(losses: torch.Tensor, support: Layers, query: Layers) -> TaskSignals:
    pairs = [(a.flatten(1), b.flatten(1)) for a, b in zip(support, query, strict=True)]
    cosines = torch.stack([F.cosine_similarity(a, b, 1) for a, b in pairs], 1)
    norms = torch.stack([torch.linalg.vector_norm(b, dim=1) for _, b in pairs], 1)
    return TaskSignals(losses, cosines, norms)


def _head_gradients(learner: ANIL, part: TaskFeatures) -> tuple[torch.Tensor, Layers, Layers]:
    device = learner.device
    support_labels = send(part.pool.support_labels, device)
    query_labels = send(part.pool.query_labels, device)

    def gradient(features: torch.Tensor, labels: torch.Tensor, logits: torch.Tensor) -> Layers:
        wrong = logits.softmax(-1) - F.one_hot(labels, learner.way).to(logits.dtype)
        wrong = wrong / labels.shape[1]
        return [wrong.transpose(1, 2) @ (features * learner.feature_scale), wrong.sum(1)]

    before = learner.logits(learner.start(len(part.pool)), part.support)
    after = learner.logits(learner.adapt(part.support, support_labels), part.query)
    return (
        query_losses(after, query_labels)[0],
        gradient(part.support, support_labels, before),
        gradient(part.query, query_labels, after),
    )


def _all_gradients(learner: MAML, part: TaskFeatures) -> tuple[torch.Tensor, Layers, Layers]:
    device = learner.device
    support_labels = send(part.pool.support_labels, device)
    query_labels = send(part.pool.query_labels, device)
    adapted = learner.adapt(part.support, support_labels)
    losses = query_losses(learner.logits(adapted, part.query), query_labels)[0]

    def loss(
        parameters: dict[str, torch.Tensor], images: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        # the query labels come with support and query images, normalised together
        return F.cross_entropy(learner.run(parameters, images)[-len(labels) :], labels)

    meta: dict[str, torch.Tensor] = dict(learner.network.named_parameters())
    both = torch.cat((part.support, part.query), 1)
    first = vmap(grad(loss), (None, 0, 0), randomness="different")
    second = vmap(grad(loss), randomness="different")
    support = first(meta, part.support, support_labels)
    query = second(adapted.parameters, both, query_labels)
    return losses, list(support.values()), list(query.values())
