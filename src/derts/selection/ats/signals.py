"""What ATS knows of a task: its loss, and whether its support and query gradients agree.

All tasks are looked at together, without touching the learner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from derts.data.table import Table
from derts.distributed import Group
from derts.hardware import send
from derts.learners.anil import ANIL
from derts.learners.base import query_losses
from derts.learners.embedding import Named, TaskFeatures, evaluation_mode, task_features
from derts.learners.maml import MAML, AdaptedNetwork
from derts.tasks.pool import TaskPool

Layers = list[Tensor]
LARGE = 1e4


class TaskSignals(NamedTuple):
    """The signals of T tasks, for the L tensors that the inner loop adapts.

    losses   [T]     query loss after adaptation
    cosines  [T, L]  between the support gradient before and the query gradient after adaptation
    norms    [T, L]  of the query gradient
    """

    losses: Tensor
    cosines: Tensor
    norms: Tensor

    def finite_on(self, device: torch.device) -> TaskSignals:
        """The same on a device; what overflowed is large, or nothing where it has no value."""
        on_device = (values.float().to(device) for values in self)
        return TaskSignals(*(values.nan_to_num(0.0, LARGE, -LARGE) for values in on_device))


class ObservedTasks(NamedTuple):
    """Tasks whose signals are known; `loss(which)` is the mean outer loss of some, with a graph.

    With pool and indices on a GPU, neither it nor pool[which] makes the program wait.
    """

    pool: TaskPool
    signals: TaskSignals
    loss: Callable[[Tensor], Tensor]


def observe_tasks(
    learner: ANIL | MAML,
    images: Table,
    pool: TaskPool,
    named: Named,
    group: Group,
    device: torch.device,
) -> ObservedTasks:
    """Signals on a device, and losses for later; call within `evaluation_mode`, with a graph.

    ANIL alone embeds every different image, `named`, once: whichever tasks' loss is asked for, the
    forward pass has been made.
    """
    if isinstance(learner, MAML) or not group.alone:
        mine = task_signals(learner, images, pool[group.part(len(pool))]).finite_on(device)
        signals = TaskSignals(*(group.gather(values, len(pool)) for values in mine))
        here = pool.to(device)
        return ObservedTasks(
            here, signals, lambda which: learner.outer_loss(images, here[which]).loss
        )
    features = learner.features(images.gather(named[0])[None])[0]
    places = send(named[1], learner.device)
    here = pool.to(learner.device)
    shots = pool.support.shape[1]

    def loss(which: Tensor) -> Tensor:
        support, query = features[places[which]].tensor_split([shots], 1)
        adapted = learner.adapt(support, here.support_labels[which])
        return query_losses(learner.logits(adapted, query), here.query_labels[which])[0].mean()

    with torch.no_grad():
        support, query = features[places].tensor_split([shots], 1)
        signals = _signals(learner, TaskFeatures(here, support, query))
    return ObservedTasks(here, signals.finite_on(device), loss)


def task_signals(learner: ANIL | MAML, images: Table, pool: TaskPool) -> TaskSignals:
    """Losses, cosines and norms of every task, without touching the learner.

    ANIL's inner loop adapts the head, so its layers are the head's weight and bias, whose
    gradients are written out; MAML's are all parameters, through torch.func.
    """
    with evaluation_mode(learner):
        parts = [_signals(learner, part) for part in task_features(learner, images, pool)]
    return TaskSignals(*(torch.cat(values) for values in zip(*parts, strict=True)))


def _signals(learner: ANIL | MAML, part: TaskFeatures) -> TaskSignals:
    labels = [send(x, learner.device) for x in (part.pool.support_labels, part.pool.query_labels)]
    if isinstance(learner, ANIL):
        before = learner.logits(learner.start(len(part.pool)), part.support)
        after = learner.logits(learner.adapt(part.support, labels[0]), part.query)
        support = _head_gradient(learner, part.support, labels[0], before)
        query = _head_gradient(learner, part.query, labels[1], after)
    else:
        adapted = learner.adapt(part.support, labels[0])
        after = learner.logits(adapted, part.query)
        support, query = _all_gradients(learner, part, adapted, *labels)
    pairs = [(a.flatten(1), b.flatten(1)) for a, b in zip(support, query, strict=True)]
    cosines = torch.stack([F.cosine_similarity(a, b, 1) for a, b in pairs], 1)
    norms = torch.stack([torch.linalg.vector_norm(b, dim=1) for _, b in pairs], 1)
    return TaskSignals(query_losses(after, labels[1])[0], cosines, norms)


def _head_gradient(learner: ANIL, features: Tensor, labels: Tensor, logits: Tensor) -> Layers:
    wrong = logits.softmax(-1) - F.one_hot(labels, learner.way).to(logits.dtype)
    wrong = wrong / labels.shape[1]
    return [wrong.transpose(1, 2) @ (features * learner.feature_scale), wrong.sum(1)]


def _all_gradients(
    learner: MAML, part: TaskFeatures, adapted: AdaptedNetwork, support: Tensor, query: Tensor
) -> tuple[Layers, Layers]:
    def loss(parameters: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        # the query labels come with support and query images, normalised together
        return F.cross_entropy(learner.run(parameters, images)[-len(labels) :], labels)

    meta: dict[str, Tensor] = dict(learner.network.named_parameters())
    both = torch.cat((part.support, part.query), 1)
    first = vmap(grad(loss), (None, 0, 0))(meta, part.support, support)
    second = vmap(grad(loss))(adapted.parameters, both, query)
    return list(first.values()), list(second.values())
