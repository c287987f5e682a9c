"""Features of a whole pool without a graph: each different image embedded once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple

import torch

from derts.clock import Clock
from derts.data.table import ImageTable
from derts.learners.base import Learner
from derts.tasks.pool import TaskPool

FEATURE_BYTES = 1 << 30  # features held at once
ON_GPU, ON_CPU = 2048, 256  # images per forward pass


class TaskFeatures(NamedTuple):
    """Some tasks of a pool with the features (MAML: images) of their support and query sets."""

    pool: TaskPool
    support: torch.Tensor
    query: torch.Tensor


@contextmanager
def evaluation_mode(learner: Learner[Any]) -> Iterator[None]:
    """Running statistics are read and left alone, no graph is kept; restored afterwards."""
    was_training = learner.training
    learner.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        learner.train(was_training)


def embed_images(learner: Learner[Any], images: ImageTable, indices: torch.Tensor) -> torch.Tensor:
    """Features [n, dim] of the images at indices [n], in forward passes of bounded size."""
    step = ON_GPU if learner.device.type == "cuda" else ON_CPU
    parts = indices.split(step)
    found = []
    for part, following in zip_longest(parts, parts[1:]):
        if following is not None:
            images.prefetch(following)
        found.append(learner.features(images.gather(part)[None])[0])
    return torch.cat(found)


def task_features(
    learner: Learner[Any],
    images: ImageTable,
    pool: TaskPool,
    tasks_at_once: int = 256,
    clock: Clock | None = None,
) -> Iterator[TaskFeatures]:
    """The pool in order, `tasks_at_once` tasks at a time; call inside `evaluation_mode`.

    Images that several tasks share are embedded once, as long as the features of all of them
    fit into FEATURE_BYTES; a larger pool is embedded in as few pieces as do. A clock counts
    the time for that as "embedding".
    """
    clock = clock or Clock(learner.device)
    if not learner.embeds:
        for part in pool.split(min(tasks_at_once, 16)):
            support, query = images.gather(part.support), images.gather(part.query)
            yield TaskFeatures(part, learner.features(support), learner.features(query))
        return
    per_image = int(learner.backbone.dim) * 4  # type: ignore[arg-type]
    per_task = pool.support.shape[1] + pool.query.shape[1]
    piece = len(pool)
    if min(len(images), len(pool) * per_task) * per_image > FEATURE_BYTES:
        piece = max(tasks_at_once, FEATURE_BYTES // (per_image * per_task))
    for part in pool.split(piece):
        named, places = torch.cat((part.support, part.query), 1).unique(return_inverse=True)
        with clock.phase("embedding"):
            features = embed_images(learner, images, named)
            clock.settle("embedding")
        places = places.to(features.device)
        for start in range(0, len(part), tasks_at_once):
            chosen = features[places[start : start + tasks_at_once]]
            support, query = chosen.tensor_split([pool.support.shape[1]], 1)
            yield TaskFeatures(part[start : start + tasks_at_once], support, query)
