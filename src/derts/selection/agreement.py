"""Do the support and query sets of a task pull a model the same way? All tasks at once."""

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
    TaskFeatures,
    evaluation_mode,
    named_images,
    task_features,
)
from derts.learners.maml import MAML
from derts.tasks.pool import TaskPool

Layers = list[torch.Tensor]
LARGE = 1e4


class Agreement(NamedTuple):
    """What ATS looks at, for T tasks and the L tensors that the inner loop adapts.

    losses   [T]     query loss after adaptation
    cosines  [T, L]  between the support gradient before and the query gradient after adaptation
    norms    [T, L]  of the query gradient
    """

    losses: torch.Tensor
    cosines: torch.Tensor
    norms: torch.Tensor

    def finite_on(self, device: torch.device) -> Agreement:
        """The same on a device; what overflowed is large, or nothing where it has no value."""
        on_device = (values.float().to(device) for values in self)
        return Agreement(*(values.nan_to_num(0.0, LARGE, -LARGE) for values in on_device))


class Candidates(NamedTuple):
    """Tasks that were looked at, and what was seen.

    loss(which) is the mean outer loss of the tasks at indices `which`, with a graph. With pool and
    indices on a GPU, neither it nor pool[which] makes the program wait.
    """

    pool: TaskPool
    signs: Agreement
    loss: Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def running_statistics(learner: ANIL | MAML) -> Iterator[None]:
    """BatchNorm reads its running statistics and leaves them alone; restored afterwards."""
    was_training = learner.training
    learner.eval()
    try:
        yield
    finally:
        learner.train(was_training)


def look_at(
    learner: ANIL | MAML,
    images: ImageTable,
    pool: TaskPool,
    named: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> Candidates:
    """Signs of all tasks, and their losses for later; call within `running_statistics`.

    The candidates' pool is where the learner is.

    ANIL embeds every different image once, with a graph: whichever tasks' loss is asked for, the
    forward pass has been made. `named`: the `named_images` of the pool, where they are known.
    """
    if isinstance(learner, MAML):
        signs = gradient_agreement(learner, images, pool)
        here = pool.to(learner.device)
        return Candidates(here, signs, lambda which: learner.outer_loss(images, here[which]).loss)
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
        signs = _compare(*_of_head(learner, TaskFeatures(here, support, query)))
    return Candidates(here, signs, loss)


def gradient_agreement(learner: ANIL | MAML, images: ImageTable, pool: TaskPool) -> Agreement:
    """Losses, cosines and norms of every task, without touching the learner.

    ANIL's inner loop adapts the head, so its layers are the head's weight and bias, whose
    gradients are written out; MAML's are all parameters, through torch.func.
    """
    parts = []
    with evaluation_mode(learner):
        for part in task_features(learner, images, pool):
            found = _of_head(learner, part) if isinstance(learner, ANIL) else _of_all(learner, part)
            parts.append(_compare(*found))
    return Agreement(*(torch.cat(values) for values in zip(*parts, strict=True)))


def _compare(losses: torch.Tensor, support: Layers, query: Layers) -> Agreement:
    pairs = [(a.flatten(1), b.flatten(1)) for a, b in zip(support, query, strict=True)]
    cosines = torch.stack([F.cosine_similarity(a, b, 1) for a, b in pairs], 1)
    norms = torch.stack([torch.linalg.vector_norm(b, dim=1) for _, b in pairs], 1)
    return Agreement(losses, cosines, norms)


def _of_head(learner: ANIL, part: TaskFeatures) -> tuple[torch.Tensor, Layers, Layers]:
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


def _of_all(learner: MAML, part: TaskFeatures) -> tuple[torch.Tensor, Layers, Layers]:
    device = learner.device
    support_labels = send(part.pool.support_labels, device)
    query_labels = send(part.pool.query_labels, device)
    adapted = learner.adapt(part.support, support_labels)
    shots = part.support.shape[1]
    losses = query_losses(learner.logits(adapted, part.query), query_labels)[0]

    def support_loss(
        parameters: dict[str, torch.Tensor], images: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        return F.cross_entropy(learner.run(parameters, images), labels)

    def query_loss(
        parameters: dict[str, torch.Tensor], images: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        return F.cross_entropy(learner.run(parameters, images)[shots:], labels)

    meta: dict[str, torch.Tensor] = dict(learner.network.named_parameters())
    both = torch.cat((part.support, part.query), 1)
    first = vmap(grad(support_loss), (None, 0, 0), randomness="different")
    second = vmap(grad(query_loss), randomness="different")
    support = first(meta, part.support, support_labels)
    query = second(adapted.parameters, both, query_labels)
    return losses, list(support.values()), list(query.values())
