"""What an image is called in many tasks says what it is: labels that tasks disagree on are mended.

This helps where every task was labelled anew, as in the paper's noise or where each task had its
own annotator. Labels that are wrong in the data set itself are the same in every task: there all
votes agree, and nothing is changed.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.errors import DertsError
from derts.tasks.pool import TaskPool

ENOUGH = 8  # labels per image of a pool: with fewer, votes mend some of a noisy task and hide it
COUNTERS_PER_LABEL = 16  # for each image and class of a pool one; more, and only pairs that occur


def relabel_by_votes(pool: TaskPool, support: bool = True) -> TaskPool:
    """The pool with each label as most of its tasks have it; ties stay as given.

    An image that other tasks call another of a task's classes more often than what this task calls
    it gets that label. Given labels alone are counted, never true ones. Tasks in which that changed
    a label are split into support and query anew, so that every class has its shots again. Without
    `support`, only labels of query images change. A pool that names its images fewer than eight
    times on average is left as it is.

    >>> from derts.data import glyphs
    >>> from derts.tasks import SwapNoise
    >>> table = glyphs(characters=40, images_per_character=12)["train"]
    >>> pool = TaskPool.sample(table, tasks=400, shot=2, query=4, noise=SwapNoise(1.0))
    >>> f"{pool.mislabelled().mean():.2f} -> {relabel_by_votes(pool).mislabelled().mean():.2f}"
    '0.27 -> 0.00'
    """
    if pool.classes is None:
        raise DertsError(
            "votes need the classes that a pool's labels stand for, the same in all tasks: make it "
            "with TaskPool.sample, give classes [tasks, way], or use --strategy.doubt none"
        )
    shots = pool.support.shape[1]
    images = torch.cat((pool.support, pool.query), 1)
    labels = torch.cat((pool.support_labels, pool.query_labels), 1)
    if images.numel() < ENOUGH * len(images.unique()):
        return pool
    votes = _votes(images, labels, pool.classes)
    most = votes.max(2)
    given = votes.gather(2, labels[:, :, None]).squeeze(2)
    voted = torch.where(most.values > given, most.indices, labels)
    if not support:
        return replace(pool, query_labels=voted[:, shots:].contiguous())
    changed = (voted != labels).any(1).nonzero().squeeze(1)
    if not len(changed):
        return pool
    order = torch.arange(labels.shape[1]).expand_as(labels).clone()
    order[changed] = _support_first(voted[changed], shots, pool.way)
    true = torch.cat((pool.true_support_labels, pool.true_query_labels), 1)
    parts = [values.gather(1, order).tensor_split([shots], 1) for values in (images, voted, true)]
    (first, rest), (first_labels, labels_of_rest), (first_true, true_of_rest) = parts
    return replace(
        pool,
        support=first.contiguous(),
        support_labels=first_labels.contiguous(),
        true_support_labels=first_true.contiguous(),
        query=rest.contiguous(),
        query_labels=labels_of_rest.contiguous(),
        true_query_labels=true_of_rest.contiguous(),
    )


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
