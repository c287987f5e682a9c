"""Features of a whole pool without a graph: each different image embedded once."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor

from derts.clock import Clock
from derts.data.table import Table
from derts.hardware import send
from derts.learners.base import Learner, ProductLearner
from derts.tasks.pool import TaskPool

FEATURE_BYTES = 1 << 30  # features held at once
ON_GPU, ON_CPU = 3200, 32  # images per forward pass; a CPU wants them in its caches
ROWS = 4096  # the same for rows of features
MAML_ON_GPU, MAML_ON_CPU = 16, 4  # tasks of MAML at once, which has no embedding
GPU_STEP = 800  # a GPU library tries its algorithms anew for each new number of images

DistinctImages = tuple[Tensor, Tensor]


class TaskFeatures(NamedTuple):
    """Some tasks of a pool with the features (MAML: images) of their support and query sets."""

    pool: TaskPool
    support: Tensor
    query: Tensor


Embedded = tuple[TaskPool, Tensor, Tensor]
"""Some tasks, features [n, dim] of the images that they name, row of each image [T, S + Q]."""


@contextmanager
def evaluation_mode(learner: Learner[Any]) -> Iterator[None]:
    """Running statistics are read and left alone, no graph is kept; restored afterwards."""
    was_training = learner.training
    learner.eval()
    try:
        with torch.no_grad(), learner.embedding.fast_math():
            yield
    finally:
        learner.train(was_training)


def distinct_images(indices: Tensor, count: int) -> DistinctImages:
    """The different ones of indices [...] below `count`, ascending, and where each is in them."""
    # cheaper than sorting
    present = torch.zeros(count, dtype=torch.bool, device=indices.device)
    present[indices.flatten()] = True
    return present.nonzero().squeeze(1), (present.cumsum(0) - 1)[indices]


def in_round_numbers(indices: Tensor) -> Tensor:
    """Indices [n], the last one repeated until they are a multiple of GPU_STEP."""
    return torch.cat((indices, indices[-1:].expand(-len(indices) % GPU_STEP)))


def embed_images(learner: Learner[Any], images: Table, indices: Tensor) -> Tensor:
    """Features [n, dim] of the images at indices [n], in forward passes of bounded size."""
    count, on_gpu = len(indices), learner.device.type == "cuda"
    if on_gpu:
        indices = in_round_numbers(indices)
    at_once = ROWS if images.of_features else ON_GPU if on_gpu else ON_CPU
    parts = indices.split(at_once)
    found = []
    for part, following in zip_longest(parts, parts[1:]):
        if following is not None:
            images.prefetch(following)
        found.append(learner.features(images.gather(part)[None])[0])
    return torch.cat(found)[:count]


def task_features(
    learner: Learner[Any],
    images: Table,
    pool: TaskPool,
    tasks_at_once: int = 256,
    clock: Clock | None = None,
    distinct: DistinctImages | None = None,
) -> Iterator[TaskFeatures]:
    """The pool in order, `tasks_at_once` tasks at a time; call inside `evaluation_mode`.

    A clock counts the time for embedding as "embedding". `distinct`: the `distinct_images` of
    a pool whose features surely fit, where they are known: a GPU is then not asked for them.
    """
    if not learner.embeds:
        most = MAML_ON_GPU if learner.device.type == "cuda" else MAML_ON_CPU
        for part in pool.split(min(tasks_at_once, most)):
            support, query = images.gather(part.support), images.gather(part.query)
            yield TaskFeatures(part, learner.features(support), learner.features(query))
        return
    if distinct is not None:
        features = embed_images(learner, images, distinct[0])
        embedded = iter([(pool, features, send(distinct[1], learner.device))])
    else:
        embedded = _embedded(learner, images, pool, tasks_at_once, clock)
    for part, features, places in embedded:
        for start in range(0, len(part), tasks_at_once):
            chosen = features[places[start : start + tasks_at_once]]
            support, query = chosen.tensor_split([pool.support.shape[1]], 1)
            yield TaskFeatures(part[start : start + tasks_at_once], support, query)


def task_products(
    learner: ProductLearner[Any],
    images: Table,
    pool: TaskPool,
    tasks_at_once: int = 256,
    clock: Clock | None = None,
) -> Iterator[tuple[TaskPool, Tensor, Tensor]]:
    """As `task_features`, with what `logits_by_products` wants: tasks, products, start logits."""
    shots = pool.support.shape[1]
    for part, features, places in _embedded(learner, images, pool, tasks_at_once, clock):
        start = learner.start_logits(features)[places]
        products = learner.embedding.inner_products(features, places, shots, tasks_at_once)
        yield part, products, start


def _embedded(
    learner: Learner[Any], images: Table, pool: TaskPool, tasks_at_once: int, clock: Clock | None
) -> Iterator[Embedded]:
    """Images that several tasks share are embedded once, as long as the features of all of them
    fit into FEATURE_BYTES; a larger pool is embedded in as few pieces as do.
    """
    clock = clock or Clock(learner.device)
    per_image = int(learner.backbone.dim) * 4  # type: ignore[arg-type]
    per_task = pool.support.shape[1] + pool.query.shape[1]
    piece = len(pool)
    if min(len(images), len(pool) * per_task) * per_image > FEATURE_BYTES:
        piece = max(tasks_at_once, FEATURE_BYTES // (per_image * per_task))
    for part in pool.split(piece):
        with clock.phase("embedding"):
            indices = [send(x, learner.device) for x in (part.support, part.query)]
            found, places = distinct_images(torch.cat(indices, 1), len(images))
            features = embed_images(learner, images, found)
            clock.settle("embedding")
        yield part, features, places
