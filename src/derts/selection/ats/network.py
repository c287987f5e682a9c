"""The network of ATS: what it knows of a task, scores by that, and sampling by scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from derts.data.table import Table
from derts.distributed import Group
from derts.hardware import send
from derts.learners.anil import ANIL
from derts.learners.base import query_losses
from derts.learners.maml import MAML, AdaptedNetwork
from derts.learners.pool_features import (
    DistinctImages,
    TaskFeatures,
    evaluation_mode,
    task_features,
)
from derts.tasks import TaskPool, generator
from derts.tasks.randomness import torch_seeded

Layers = list[Tensor]
OuterLoss = Callable[[Tensor], Tensor]  # of the tasks at some indices: their mean, with a graph
LARGE = 1e4
STEPS_OF_PROGRESS = 100


class TaskSignals(NamedTuple):
    """The signals of T tasks, for the L tensors that the inner loop adapts."""

    losses: Tensor  # [T]: query loss after adaptation
    cosines: Tensor  # [T, L]: of the support gradient before and the query gradient after it
    norms: Tensor  # [T, L]: of the query gradient

    def finite_on(self, device: torch.device) -> TaskSignals:
        """The same on a device; what overflowed is large, or nothing where it has no value."""
        on_device = (values.float().to(device) for values in self)
        return TaskSignals(*(values.nan_to_num(0.0, LARGE, -LARGE) for values in on_device))


def observe_tasks(
    learner: ANIL | MAML, images: Table, pool: TaskPool, distinct: DistinctImages, group: Group,
    device: torch.device,
) -> tuple[TaskSignals, OuterLoss]:  # fmt: skip
    """Signals on a device, and losses for later; call within `evaluation_mode`, with a graph.

    ANIL alone embeds each of the `distinct_images` once: whichever tasks' loss is asked for, the
    forward pass has been made. With indices on a GPU the loss makes no program wait.
    """
    if isinstance(learner, MAML) or not group.alone:
        mine = task_signals(learner, images, pool[group.part(len(pool))]).finite_on(device)
        signals = TaskSignals(*(group.gather(values, len(pool)) for values in mine))
        there = pool.to(device)
        return signals, lambda which: learner.outer_loss(images, there[which]).loss
    features = learner.features(images.gather(distinct[0])[None])[0]
    places, here = send(distinct[1], learner.device), pool.to(learner.device)
    shots = pool.support.shape[1]

    def loss(which: Tensor) -> Tensor:
        support, query = features[places[which]].tensor_split([shots], 1)
        adapted = learner.adapt(support, here.support_labels[which])
        return query_losses(learner.logits(adapted, query), here.query_labels[which])[0].mean()

    with torch.no_grad():
        support, query = features[places].tensor_split([shots], 1)
        signals = _signals(learner, TaskFeatures(here, support, query))
    return signals.finite_on(device), loss


def task_signals(learner: ANIL | MAML, images: Table, pool: TaskPool) -> TaskSignals:
    """Losses, cosines and norms of every task: of ANIL's head, or of all parameters of MAML."""
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


class Scheduler(nn.Module):
    """Scores candidate tasks from their signals and the training's progress."""

    def __init__(self) -> None:
        super().__init__()
        self.progress = nn.Embedding(STEPS_OF_PROGRESS, 5)
        readers = [nn.LSTM(1, 10, bidirectional=True, batch_first=True) for _ in range(3)]
        self.readers = nn.ModuleList(readers)
        self.context = nn.Sequential(nn.Linear(65, 20), nn.Tanh(), nn.Linear(20, 10))
        self.score = nn.Sequential(nn.Linear(75, 20), nn.Tanh(), nn.Linear(20, 1))

    @classmethod
    def from_seed(cls, seed: int) -> Scheduler:
        """A fresh one whose weights depend on the seed alone."""
        with torch_seeded(generator((seed, "scheduler")).initial_seed()):
            return cls()

    def forward(self, signals: TaskSignals, step: Tensor) -> Tensor:
        """Signals of T tasks, step int64 [1] of the training's progress -> scores [T]."""
        sequences = (signals.losses[:, None], signals.cosines, signals.norms)
        read = [
            reader(sequence[..., None])[1][0].transpose(0, 1).flatten(1)  # both directions' ends
            for reader, sequence in zip(self.readers, sequences, strict=True)
        ]
        now = self.progress.weight.index_select(0, step).expand(len(signals.losses), -1)
        features = torch.cat((*read, now), 1)  # [T, 65]
        context = self.context(features).mean(0).expand(len(features), -1)
        scores: Tensor = self.score(torch.cat((features, context), 1))
        return scores.squeeze(1)


def gumbel(rows: int, count: int, random: torch.Generator) -> Tensor:
    """[rows, count] random numbers: scores with one row added are largest by softmax's chances."""
    uniform = [torch.rand(count, generator=random).clamp_(min=1e-20) for _ in range(rows)]
    return -(-torch.stack(uniform).log()).log()


def sample_in_order(scores: Tensor, count: int, noise: Tensor) -> tuple[Tensor, Tensor]:
    """`count` positions drawn one after the other without replacement, by softmax of scores [T].

    Also the log-probability of drawing them in that order. `noise` [T] is a row of `gumbel`.
    """
    order = (scores.detach() + noise).topk(count).indices
    turn = torch.arange(count, device=scores.device)
    taken = torch.zeros(count, len(scores), dtype=torch.bool, device=scores.device)
    taken[:, order] = turn[:, None] > turn
    remaining = scores.expand(count, -1).masked_fill(taken, -torch.inf).logsumexp(1)
    return order, (scores[order] - remaining).sum()
