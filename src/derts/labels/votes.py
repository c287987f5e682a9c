"""Majority vote: an image is in many tasks of a pool, and most of them have its label right.

This undoes noise where every task was labelled anew, as in the paper's noise, or where each task
had its own annotator. Labels that are wrong in the data set itself are the same in every task:
there all votes agree, and nothing changes.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.errors import DertsError
from derts.tasks.pool import TaskPool

ENOUGH = 8  # labels per image: with fewer, votes correct some labels of a noisy task and hide it
COUNTERS_PER_LABEL = 16  # for each image and class of a pool one; more, and only pairs that occur


@dataclass(frozen=True)
class Votes:
    """What a majority vote over a pool's tasks gave.

    pool         the pool with each label as most of its tasks have it
    relabelled   share of labels that changed
    per_image    labels per image, on average
    """

    pool: TaskPool
    relabelled: float
    per_image: float

    @property
    def note(self) -> str:
        """Why there was no vote; empty where there was one."""
        if self.per_image >= ENOUGH:
            return ""
        return (
            f"no votes: an image of a pool is in {self.per_image:.1f} of its tasks, {ENOUGH} are "
            "needed, so labels stay as given; raise --strategy.pool or lower --strategy.pool-images"
        )


def relabel_by_votes(pool: TaskPool) -> TaskPool:
    """The pool with each label as most of its tasks have it; `majority_vote` tells more.

    >>> from derts.data import glyphs
    >>> from derts.tasks import SwapNoise
    >>> table = glyphs(characters=40, images_per_character=12)["train"]
    >>> pool = TaskPool.sample(table, tasks=400, shot=2, query=4, noise=SwapNoise(1.0))
    >>> f"{pool.mislabelled().mean():.2f} -> {relabel_by_votes(pool).mislabelled().mean():.2f}"
    '0.27 -> 0.00'
    """
    return majority_vote(pool).pool


def majority_vote(pool: TaskPool) -> Votes:
    """Relabel each image of a task as most tasks have it, among the task's classes.

    Ties stay as given. Given labels alone are counted, never true ones. Tasks in which a label
    changed are split into support and query anew, so that every class has its shots again. With
    fewer than eight labels per image nothing changes.
    """
    if pool.classes is None:
        raise DertsError(
            "votes need the classes that a pool's labels stand for, the same in all tasks: make it "
            "with TaskPool.sample, give classes [tasks, way], or use --strategy.no-votes"
        )
    shots = pool.support.shape[1]
    images = torch.cat((pool.support, pool.query), 1)
    labels = torch.cat((pool.support_labels, pool.query_labels), 1)
    per_image = images.numel() / max(len(images.unique()), 1)
    if per_image < ENOUGH:
        return Votes(pool, 0.0, per_image)
    votes = _votes(images, labels, pool.classes)
    most = votes.max(2)
    given = votes.gather(2, labels[:, :, None]).squeeze(2)
    voted = torch.where(most.values > given, most.indices, labels)
    changed = (voted != labels).any(1).nonzero().squeeze(1)
    if not len(changed):
        return Votes(pool, 0.0, per_image)
    order = torch.arange(labels.shape[1]).expand_as(labels).clone()
    order[changed] = _support_first(voted[changed], shots, pool.way)
    true = torch.cat((pool.true_support_labels, pool.true_query_labels), 1)
    tensors = {}
    for name, values in (("{}", images), ("{}_labels", voted), ("true_{}_labels", true)):
        support, query = values.gather(1, order).tensor_split([shots], 1)
        tensors[name.format("support")] = support.contiguous()
        tensors[name.format("query")] = query.contiguous()
    relabelled = pool.relabelled("majority vote", **tensors)
    return Votes(relabelled, float((voted != labels).float().mean()), per_image)


def _votes(images: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """[N, S + Q, way]: how often tasks call each task's images each of its classes."""
    image_count, image_ranks = _ranks(images)
    class_count, class_ranks = _ranks(classes)
    called = image_ranks * class_count + class_ranks.gather(1, labels)
    asked = image_ranks[:, :, None] * class_count + class_ranks[:, None, :]
    if image_count * class_count <= COUNTERS_PER_LABEL * labels.numel():
        counters = torch.zeros(image_count * class_count, dtype=torch.int32)
        counters.index_add_(
            0, called.flatten(), torch.ones(1, dtype=torch.int32).expand(called.numel())
        )
        return counters[asked]
    pairs, counts = called.flatten().unique(return_counts=True)
    places = torch.searchsorted(pairs, asked).clamp_(max=len(pairs) - 1)
    return torch.where(pairs[places] == asked, counts[places], 0)


def _ranks(numbers: Tensor) -> tuple[int, Tensor]:
    """How many different numbers there are, and each one's rank among them."""
    different, ranks = numbers.unique(return_inverse=True)
    return len(different), ranks


def _support_first(labels: Tensor, support: int, way: int) -> Tensor:
    """An order [N, S + Q] that puts the first S / way images of each class first.

    Tasks that lack so many images of a class keep their order.
    """
    called = F.one_hot(labels, way)
    rank = called.cumsum(1).gather(2, labels[:, :, None]).squeeze(2)
    later = rank > support // way
    possible = later.sum(1, keepdim=True) == labels.shape[1] - support
    return (later & possible).to(torch.uint8).argsort(dim=1, stable=True)
