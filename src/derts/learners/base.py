"""The contract of a meta-learner, and what all of them share."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from derts.data.table import Table
from derts.errors import DertsError
from derts.hardware import send
from derts.models.embedding import Embedding
from derts.tasks.augment import apply_augmentation
from derts.tasks.pool import TaskPool

Adapted = TypeVar("Adapted")
Weigh = Callable[[Tensor], Tensor | None]


@dataclass(frozen=True)
class Outcome:
    """Of T tasks: mean of weight × task loss, with graph; query losses [T], accuracies [T]."""

    loss: Tensor
    losses: Tensor
    accuracies: Tensor


class Learner(nn.Module, ABC, Generic[Adapted]):
    """Adapts to support sets and classifies query sets, all tasks of a batch at once.

    way        classes per task
    smoothing  share of each query target that training spreads evenly over all classes
    embedding  how images go through the backbone; all that makes it fast is there
    embeds     features do not depend on the task: each image is embedded once per pool
    by_trust   training images whose label may be wrong count less: measurement says that it helps
    """

    embeds, by_trust = True, False

    def __init__(self, backbone: nn.Module, way: int, smoothing: float = 0.0) -> None:
        super().__init__()
        self.backbone, self.way, self.smoothing = backbone, way, smoothing
        self.embedding = Embedding(backbone)

    @property
    def device(self) -> torch.device:
        return self._reference().device

    @property
    def dtype(self) -> torch.dtype:
        return self._reference().dtype

    def _reference(self) -> Tensor:
        """A parameter to take device and dtype from; a model without any is taken to be on CPU."""
        floats = (value for value in self.parameters() if value.is_floating_point())
        return next(floats, torch.empty(0))

    def features(self, images: Tensor, patch_products: Tensor | None = None) -> Tensor:
        """uint8 [T, n, height, width, channels] -> [T, n, dim], or the images if none `embeds`.

        `patch_products` are the embedding's own, where it knows them beforehand.
        """
        items = self.embedding.by_pretrained(send(images, self.device))
        return self.embedding(items, self.dtype, patch_products) if self.embeds else items

    @abstractmethod
    def adapt(self, features: Tensor, labels: Tensor) -> Adapted:
        """Support features [T, S, dim] and labels [T, S] -> whatever `logits` needs."""

    def adapt_by_trust(self, features: Tensor, labels: Tensor, trust: Tensor) -> Adapted:
        """The same; where `by_trust`, an image counts by how likely, trust [T, S], its label is."""
        return self.adapt(features, labels)

    @abstractmethod
    def logits(self, adapted: Adapted, features: Tensor) -> Tensor:
        """Query features [T, Q, dim] -> logits [T, Q, way]."""

    def check_way(self, pool: TaskPool) -> None:
        """Refuse tasks of another number of classes."""
        if pool.way != self.way:
            wrong = f"the pool's tasks have {pool.way} classes but the learner is for {self.way}"
            fix = f"draw tasks with way={self.way}, or build a learner with way={pool.way}"
            raise DertsError(f"{wrong}: {fix}")

    def forward_tasks(self, images: Table, pool: TaskPool) -> tuple[Tensor, Tensor, Tensor]:
        """Query losses [T] with graph, the same detached and unsmoothed, and accuracies [T]."""
        self.check_way(pool)
        indices = torch.cat((pool.support, pool.query), 1)
        as_they_are = self.training and pool.augmentation is None
        products = self.embedding.patch_products_of(images, indices) if as_they_are else None
        pixels = images.gather(indices)
        if pool.augmentation is not None:
            pixels = apply_augmentation(pixels, send(pool.augmentation, pixels.device))
        features, shots = self.features(pixels, products), pool.support.shape[1]
        support, query = features.tensor_split([shots], 1)
        labels, trust = send(pool.support_labels, self.device), None
        if pool.trust is None:
            adapted = self.adapt(support, labels)
        else:
            known, trust = send(pool.trust, self.device).split([shots, query.shape[1]], 1)
            adapted = self.adapt_by_trust(support, labels, known)
        labels, logits = send(pool.query_labels, self.device), self.logits(adapted, query)
        smoothing = self.smoothing if self.training else 0.0
        losses, accuracies = query_losses(logits, labels, smoothing, trust)
        changed = smoothing > 0 or trust is not None
        plain = query_losses(logits.detach(), labels)[0] if changed else losses.detach()
        return losses, plain, accuracies

    def outer_loss(
        self, images: Table, pool: TaskPool, weights: Tensor | Weigh | None = None
    ) -> Outcome:
        """Weighted outer loss of a meta-batch.

        `weights` [T] have mean 1 by convention; a function gets the tasks' losses [T], detached and
        without smoothing, and returns the weights.
        """
        losses, plain, accuracies = self.forward_tasks(images, pool)
        if callable(weights):
            weights = weights(plain)
        if weights is not None:
            weights = send(weights, losses.device).to(losses.dtype)
        weighted = losses if weights is None else losses * weights
        return Outcome(weighted.mean(), losses.detach(), accuracies)


class ProductLearner(Learner[Adapted]):
    """A learner that asks no more of features than their inner products within a task."""

    def start_logits(self, features: Tensor) -> Tensor:
        """Features [n, dim] -> logits [n, way] before adaptation, where there are any; else 0."""
        return features.new_zeros(len(features), self.way)

    @abstractmethod
    def logits_by_products(self, products: Tensor, start: Tensor, labels: Tensor) -> Tensor:
        """Query logits [T, Q, way] after adaptation to support labels [T, S].

        products [T, S + Q, S] are inner products of each task's features with its support
        features, start [T, S + Q, way] the `start_logits`. Equal to `logits` of `adapt` but for a
        constant per query image, which no softmax sees.
        """


def query_losses(
    logits: Tensor, labels: Tensor, smoothing: float = 0.0, trust: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Logits [T, Q, way], labels [T, Q] -> mean cross-entropy [T] and accuracy [T] per task.

    `smoothing` is the share of each target that is spread evenly over all classes. With trust
    [T, Q] a label is right with that probability, and else any of the classes: p becomes
    t · p + (1 − t) / way.
    """
    by_class = logits.transpose(1, 2)
    each = F.cross_entropy(by_class, labels, reduction="none", label_smoothing=smoothing)
    if trust is not None:
        chances = logits.log_softmax(-1)
        right = trust.log() + chances.gather(-1, labels[..., None]).squeeze(-1)
        mixed = torch.logaddexp(right, ((1 - trust) / logits.shape[-1]).log())
        each = -(1 - smoothing) * mixed - smoothing * chances.mean(-1)
    losses = each.mean(1)
    return losses, (logits.detach().argmax(-1) == labels).to(losses.dtype).mean(1)


def check_inputs(learner: Learner[Any], images: Table, pool: TaskPool) -> None:
    """Refuse what is no learner, table or pool, and tasks of another table or way."""
    for given, kind, fix in (
        (learner, Learner, "make one with derts.build_learner"),
        (images, Table, "give a derts.ImageTable or derts.FeatureTable"),
        (pool, TaskPool, "draw one with derts.TaskPool.sample"),
    ):
        if not isinstance(given, kind):
            raise DertsError(f"a {type(given).__name__} is no {kind.__name__}: {fix}")
    learner.check_way(pool)
    if len(pool) == 0:
        raise DertsError("the pool has no tasks: draw at least one")
    highest = max(int(pool.support.max()), int(pool.query.max()))
    if highest >= len(images):
        wrong = f"the pool names {images.noun} {highest} but the table has {len(images)}"
        raise DertsError(f"{wrong}: give the table that the tasks were drawn from")
