"""Query logits of a whole pool after adaptation to each task, by the cheapest way there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from derts.clock import Clock
from derts.data.table import ImageTable
from derts.hardware import send
from derts.learners.anil import ANIL
from derts.learners.base import Learner, ProductLearner
from derts.learners.embedding import TaskFeatures, task_features, task_products
from derts.learners.maml import MAML
from derts.learners.wrapped import OwnLearner
from derts.tasks.pool import TaskPool


class Classified(NamedTuple):
    """Query logits [T, Q, way] of some tasks after adaptation, and labels [T, Q].

    `start` are the logits before adaptation, where they were asked for and the learner has a state
    before it; `random` logits and labels of the same images labelled at random. `features` and
    what the learner adapted to them only where they were asked for.
    """

    logits: Tensor
    labels: Tensor
    start: Tensor | None
    random: tuple[Tensor, Tensor] | None
    features: TaskFeatures | None = None
    adapted: Any = None


def classified(
    learner: Learner[Any],
    images: ImageTable,
    pool: TaskPool,
    reference: TaskPool | None,
    tasks_at_once: int,
    clock: Clock,
    *,
    start: bool,
    features: bool,
) -> Iterator[Classified]:
    """The pool in order, some tasks at a time; call inside `evaluation_mode`.

    `reference` is the pool labelled at random. Inner products of features do where the learner
    needs no more and nobody asked for `features`.
    """
    done = 0
    if isinstance(learner, ProductLearner) and not features:
        for part, products, before in task_products(learner, images, pool, tasks_at_once, clock):
            pools = _with_reference(part, reference, done)
            done += len(part)
            found = [
                (
                    learner.logits_by_products(
                        products, before, send(one.support_labels, learner.device)
                    ),
                    send(one.query_labels, learner.device),
                )
                for one in pools
            ]
            asked = start and isinstance(learner, ANIL)
            own = before[:, part.support.shape[1] :] if asked else None
            yield Classified(*found[0], own, found[1] if reference is not None else None)
        return
    rule = learner.rule if isinstance(learner, OwnLearner) else learner
    for piece in task_features(learner, images, pool, tasks_at_once, clock):
        pools = _with_reference(piece.pool, reference, done)
        done += len(piece.pool)
        adapted = [
            learner.adapt(piece.support, send(one.support_labels, learner.device)) for one in pools
        ]
        found = [
            (learner.logits(to, piece.query), send(one.query_labels, learner.device))
            for to, one in zip(adapted, pools, strict=True)
        ]
        own = None
        if start and isinstance(rule, ANIL | MAML):
            own = learner.logits(learner.start(len(piece.pool)), piece.query)
        random = found[1] if reference is not None else None
        yield Classified(*found[0], own, random, piece, adapted[0])


def _with_reference(part: TaskPool, reference: TaskPool | None, done: int) -> list[TaskPool]:
    """Some tasks, and the same labelled at random where they are known."""
    return [part] if reference is None else [part, reference[done : done + len(part)]]
