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

MOST_VOTES = 32_000  # an image this often called the same will not be persuaded any more


class LabelVotes:
    """Counts what each image was called, over all pools it is shown.

    `add` a pool, then ask for it `mended`: an image that was called another of the task's classes
    more often than what this task calls it gets that label. Given labels alone are counted, never
    true ones.

    >>> from derts.data import glyphs
    >>> from derts.tasks import SwapNoise
    >>> table = glyphs(characters=40, images_per_character=12)["train"]
    >>> pool = TaskPool.sample(table, tasks=400, shot=2, query=4, noise=SwapNoise(1.0))
    >>> votes = LabelVotes(len(table), len(table.class_names))
    >>> votes.add(pool)
    >>> f"{pool.mislabelled().mean():.2f} -> {votes.mended(pool).mislabelled().mean():.2f}"
    '0.28 -> 0.00'
    """

    def __init__(self, images: int, classes: int) -> None:
        self.counts = torch.zeros(images, classes, dtype=torch.int16)
        self.pools = 0

    def add(self, pool: TaskPool) -> None:
        """Count the labels of a pool's tasks."""
        classes = _classes(pool)
        images, labels = _all_images(pool)
        called = classes.gather(1, labels)
        places = (images * self.counts.shape[1] + called).flatten()
        flat = self.counts.view(-1)
        flat.index_add_(0, places, torch.ones(1, dtype=torch.int16).expand(len(places)))
        flat[places] = flat[places].clamp_(max=MOST_VOTES)
        self.pools += 1

    def mended(self, pool: TaskPool, support: bool = True) -> TaskPool:
        """The pool with each label as most tasks have it; ties stay as given.

        Tasks in which that changed a label are split into support and query anew, so that every
        class has its shots again. Without `support`, only labels of query images change.
        """
        images, labels = _all_images(pool)
        votes = self.counts[images[:, :, None], _classes(pool)[:, None, :]]  # [N, S + Q, way]
        most = votes.max(2)
        given = votes.gather(2, labels[:, :, None]).squeeze(2)
        voted = torch.where(most.values > given, most.indices, labels)
        if not support:
            return replace(pool, query_labels=voted[:, pool.support.shape[1] :].contiguous())
        changed = (voted != labels).any(1).nonzero().squeeze(1)
        if not len(changed):
            return pool
        order = torch.arange(labels.shape[1]).expand_as(labels).clone()
        order[changed] = _support_first(voted[changed], pool.support.shape[1], pool.way)
        true = torch.cat((pool.true_support_labels, pool.true_query_labels), 1)
        names = ("support", "query"), ("support_labels", "query_labels"), _TRUE_LABELS
        mended = {}
        for (first, second), values in zip(names, (images, voted, true), strict=True):
            parts = values.gather(1, order).tensor_split([pool.support.shape[1]], 1)
            mended[first], mended[second] = parts[0].contiguous(), parts[1].contiguous()
        return TaskPool(**mended, way=pool.way, recipe=pool.recipe, classes=pool.classes)


_TRUE_LABELS = ("true_support_labels", "true_query_labels")


def _classes(pool: TaskPool) -> Tensor:
    if pool.classes is None:
        raise DertsError(
            "votes need the classes that a pool's labels stand for, the same in all tasks: "
            "make it with TaskPool.sample, or give classes [tasks, way]"
        )
    return pool.classes


def _all_images(pool: TaskPool) -> tuple[Tensor, Tensor]:
    """Images and given labels [N, S + Q], support first."""
    images = torch.cat((pool.support, pool.query), 1)
    return images, torch.cat((pool.support_labels, pool.query_labels), 1)


def _support_first(labels: Tensor, support: int, way: int) -> Tensor:
    """An order [N, S + Q] that puts the first S / way images of each class first.

    Tasks that lack so many images of a class keep their order.
    """
    called = F.one_hot(labels, way)
    rank = called.cumsum(1).gather(2, labels[:, :, None]).squeeze(2)
    later = rank > support // way
    possible = later.sum(1, keepdim=True) == labels.shape[1] - support
    return (later & possible).to(torch.uint8).argsort(dim=1, stable=True)
