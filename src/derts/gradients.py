"""Stage 5: a cheap estimate of each task's outer gradient, one row per task.

p is the softmax of the query logits, y the one-hot given label, h the features, T tasks of Q query
images each; sums run over a task's query set.

    name           row of a task                                      size
    logit-theta    Σ (p − y) before adaptation                        way
    logit          Σ (p − y) after adaptation                         way
    last-layer     Σ (p − y) ⊗ h: gradient of the adapted last layer  way × d
    feature        mean of (Wᵀ(p − y)) ⊙ h, blind to label order      d
    error-profile  Σ (p − y) apart for each given class               way²
    exact          true outer gradient of every parameter             all, slow: for diagnosis

A learner whose classes exist only through the support set (prototypes) has no meta-model to ask
before adaptation: there `logit-theta` is `logit`. MAML has no features apart from the task and
knows neither `last-layer` nor `feature`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.clock import Clock
from derts.data.table import Table
from derts.distributed import Group
from derts.errors import DertsError
from derts.hardware import send
from derts.learners.anil import ANIL
from derts.learners.base import Learner, ProductLearner, query_losses
from derts.learners.embedding import TaskFeatures, evaluation_mode, task_features, task_products
from derts.learners.maml import MAML
from derts.learners.wrapped import OwnLearner
from derts.tasks.pool import TaskPool
from derts.tasks.randomness import generator

ESTIMATES = ("logit-theta", "logit", "last-layer", "feature", "error-profile", "exact")
NEED_FEATURES = ("last-layer", "feature")


@dataclass(frozen=True, eq=False)
class PoolEstimate:
    """What one pass over a pool of N tasks tells, on the learner's device and in its dtype.

    gradients   name -> [N, dim]
    losses      [N] mean query loss after adaptation
    accuracies  [N] share of the query labelled as given after adaptation
    reference_losses  [N] losses of the same images with random labels, for
                `derts.selection.noisy_tasks`; None where they were not asked for
    """

    gradients: dict[str, Tensor]
    losses: Tensor
    accuracies: Tensor
    reference_losses: Tensor | None = None

    def gathered(self, group: Group, count: int) -> PoolEstimate:
        """All processes' estimates of their parts of `count` tasks as one."""
        if group.alone:
            return self
        reference = self.reference_losses
        return PoolEstimate(
            {name: group.gather(rows, count) for name, rows in self.gradients.items()},
            group.gather(self.losses, count),
            group.gather(self.accuracies, count),
            None if reference is None else group.gather(reference, count),
        )


def estimate_gradients(
    learner: Learner[Any], images: Table, pool: TaskPool, estimate: str = "logit"
) -> Tensor:
    """[N, dim]: one estimated outer gradient per task of the pool.

    >>> import derts
    >>> table = derts.ImageTable(torch.zeros(40, 16, 16, 1, dtype=torch.uint8),
    ...                          torch.arange(40) // 10, tuple("abcd"))
    >>> pool = derts.TaskPool.sample(table, tasks=6, way=3, shot=1, query=2, seed=0)
    >>> from derts.models import CNN4
    >>> learner = derts.ProtoNet(CNN4(channels=1, image_size=(16, 16), width=2), way=3)
    >>> estimate_gradients(learner, table, pool).shape
    torch.Size([6, 3])
    """
    return estimate_pool(learner, images, pool, (estimate,)).gradients[estimate]


def estimate_pool(
    learner: Learner[Any],
    images: Table,
    pool: TaskPool,
    estimates: Sequence[str] = ("logit",),
    tasks_at_once: int = 256,
    reference: TaskPool | None = None,
    clock: Clock | None = None,
    only: slice = slice(None),
) -> PoolEstimate:
    """All named estimates and losses of a pool from one pass, without a graph.

    Each different image is embedded once, with running statistics read and left alone. With a
    `reference`, the pool `with_random_labels`, every task is scored a second time with those: the
    images are not embedded again, so this is cheap, except for MAML. Rows of tasks whose numbers
    overflow are not finite: the caller decides what to do with them. A clock counts the time as
    "embedding" and "estimating". `only` estimates but some of the tasks, with the numbers they
    have in the whole pool's estimate.
    """
    names = (estimates,) if isinstance(estimates, str) else tuple(estimates)
    _check(learner, pool, names)
    rows: dict[str, list[Tensor]] = {name: [] for name in names if name != "exact"}
    found: list[tuple[Tensor, Tensor]] = []
    random: list[Tensor] = []
    pool, reference = pool[only], None if reference is None else reference[only]
    clock = clock or Clock(learner.device)
    with clock.phase("estimating"), evaluation_mode(learner):
        for part in _classified(learner, images, pool, reference, names, tasks_at_once, clock):
            found.append(query_losses(part.logits, part.labels))
            wrong = _errors(part.logits, part.labels)
            for name, values in rows.items():
                values.append(_rows(name, learner, part, wrong))
            if part.random is not None:
                random.append(query_losses(*part.random)[0])
        clock.settle("estimating")
    gradients = {name: torch.cat(values) for name, values in rows.items()}
    if "exact" in names:
        gradients["exact"] = exact_gradients(learner, images, pool)
    losses, accuracies = map(torch.cat, zip(*found, strict=True))
    return PoolEstimate(gradients, losses, accuracies, torch.cat(random) if random else None)


def exact_gradients(
    learner: Learner[Any],
    images: Table,
    pool: TaskPool,
    device: torch.device | str | None = None,
) -> Tensor:
    """[N, P]: the gradient of each task's outer loss in all P trainable parameters.

    Second order where the learner is, in the order of `learner.parameters()`. BatchNorm reads its
    running statistics, so that a task's gradient does not depend on the others. One backward pass
    per task: memory for the answer and one task. `device` holds the answer (by default the
    learner's): 640 tasks of CNN4 are 300 MB.
    """
    parameters = [value for value in learner.parameters() if value.requires_grad]
    if not parameters:
        raise DertsError("the learner has no trainable parameter; use another estimate than exact")
    size = sum(value.numel() for value in parameters)
    found = torch.empty(len(pool), size, dtype=learner.dtype, device=device or learner.device)
    with evaluation_mode(learner), torch.enable_grad():
        for number, task in enumerate(pool.split(1)):
            loss = learner.outer_loss(images, task).loss
            parts = torch.autograd.grad(loss, parameters, materialize_grads=True)
            found[number] = torch.cat([part.flatten() for part in parts])
    return found


def usable_estimates(learner: Learner[Any]) -> tuple[str, ...]:
    """The names of the estimates that a learner knows.

    >>> import derts
    >>> from derts.models import CNN4
    >>> usable_estimates(derts.MAML(CNN4(channels=1, image_size=(16, 16), width=2), way=3))
    ('logit-theta', 'logit', 'error-profile', 'exact')
    """
    return tuple(name for name in ESTIMATES if learner.embeds or name not in NEED_FEATURES)


def _check(learner: Learner[Any], pool: TaskPool, names: Sequence[str]) -> None:
    usable = usable_estimates(learner)
    for name in names:
        if name not in ESTIMATES:
            raise DertsError(
                f"no gradient estimate is called {name!r}; choose from {', '.join(usable)}"
            )
        if name not in usable:
            raise DertsError(
                f"{type(learner).__name__} has no features apart from the task, so the estimate "
                f"{name!r} does not exist; choose from {', '.join(usable)}"
            )
    learner.check_way(pool)
    if len(pool) == 0:
        raise DertsError("the pool has no tasks to estimate; draw at least one")


def with_random_labels(pool: TaskPool, seed: int | Sequence[int | str]) -> TaskPool:
    """The same images with labels drawn at random, all equally likely."""
    source = generator(seed)
    return pool.relabelled(
        "chance",
        support_labels=torch.randint(pool.way, pool.support.shape, generator=source),
        query_labels=torch.randint(pool.way, pool.query.shape, generator=source),
    )


class _Classified(NamedTuple):
    """Query logits [T, Q, way] of some tasks after adaptation, and labels [T, Q]."""

    logits: Tensor
    labels: Tensor
    start: Tensor | None  # logits before adaptation, where the learner has a state before it
    random: tuple[Tensor, Tensor] | None  # logits and labels of the same, labelled at random
    features: TaskFeatures | None = None  # this and the next only where an estimate needs them
    adapted: Any = None


def _classified(
    learner: Learner[Any],
    images: Table,
    pool: TaskPool,
    reference: TaskPool | None,
    names: Sequence[str],
    tasks_at_once: int,
    clock: Clock,
) -> Iterator[_Classified]:
    """The pool in order, some tasks at a time; by inner products of features where they do."""
    start, done, device = "logit-theta" in names, 0, learner.device

    def labelled(part: TaskPool) -> list[tuple[Tensor, Tensor]]:
        """Support and query labels as given, and at random where they are known."""
        pools = [part] if reference is None else [part, reference[done : done + len(part)]]
        return [(send(one.support_labels, device), send(one.query_labels, device)) for one in pools]

    if isinstance(learner, ProductLearner) and not set(names) & set(NEED_FEATURES):
        for part, products, before in task_products(learner, images, pool, tasks_at_once, clock):
            found = [
                (learner.logits_by_products(products, before, support), query)
                for support, query in labelled(part)
            ]
            done += len(part)
            asked = start and isinstance(learner, ANIL)
            own = before[:, part.support.shape[1] :] if asked else None
            yield _Classified(*found[0], own, found[1] if reference is not None else None)
        return
    rule = learner.rule if isinstance(learner, OwnLearner) else learner
    for piece in task_features(learner, images, pool, tasks_at_once, clock):
        labels = labelled(piece.pool)
        done += len(piece.pool)
        adapted = [learner.adapt(piece.support, support) for support, _ in labels]
        found = [
            (learner.logits(to, piece.query), query)
            for to, (_, query) in zip(adapted, labels, strict=True)
        ]
        own = None
        if start and isinstance(rule, ANIL | MAML):
            own = learner.logits(rule.start(len(piece.pool)), piece.query)
        random = found[1] if reference is not None else None
        yield _Classified(*found[0], own, random, piece, adapted[0])


def _errors(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits [T, Q, way], labels [T, Q] -> p − y [T, Q, way]."""
    return logits.softmax(-1) - F.one_hot(labels, logits.shape[-1]).to(logits.dtype)


def _rows(name: str, learner: Learner[Any], part: _Classified, wrong: Tensor) -> Tensor:
    """One estimate [T, dim] of some tasks; `wrong` is p − y [T, Q, way] after adaptation."""
    if name == "logit-theta" and part.start is not None:
        return _errors(part.start, part.labels).sum(1)
    if name in ("logit-theta", "logit"):
        return wrong.sum(1)
    if name == "error-profile":
        given = F.one_hot(part.labels, wrong.shape[-1]).to(wrong.dtype)
        return (given.transpose(1, 2) @ wrong).flatten(1)
    assert part.features is not None
    query = part.features.query
    if name == "last-layer":
        # what the last layer multiplies by its weights: ANIL scales its features first
        rule = learner.rule if isinstance(learner, OwnLearner) else learner
        scale = rule.feature_scale if isinstance(rule, ANIL) else 1.0
        return (wrong.transpose(1, 2) @ (query * scale)).flatten(1)
    return (_feature_gradients(learner, query, part.adapted, part.labels) * query).mean(1)


def _feature_gradients(
    learner: Learner[Any], features: Tensor, adapted: Any, labels: Tensor
) -> Tensor:
    """[T, Q, d]: gradient of each image's cross-entropy in its features, Wᵀ(p − y)."""
    with torch.enable_grad():
        inputs = features.detach().requires_grad_()
        logits = learner.logits(adapted, inputs)
        total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return torch.autograd.grad(total, inputs)[0]
