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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.clock import Clock
from derts.data.table import Table
from derts.distributed import Group
from derts.errors import DertsError
from derts.hardware import send
from derts.learners import ANIL, MAML, Learner
from derts.learners.base import ProductLearner, check_inputs, query_losses
from derts.learners.pool_features import evaluation_mode, task_features, task_products
from derts.learners.wrapped import OwnLearner
from derts.tasks import TaskPool, generator

ESTIMATES = ("logit-theta", "logit", "last-layer", "feature", "error-profile", "exact")
NEED_FEATURES = ("last-layer", "feature")


@dataclass(frozen=True, eq=False)
class PoolEstimate:
    """What one pass over a pool of N tasks tells, on the learner's device and in its dtype."""

    gradients: dict[str, Tensor]  # name -> [N, dim]
    losses: Tensor  # [N]: mean query loss after adaptation
    accuracies: Tensor  # [N]: share of the query labelled as given after adaptation
    reference_losses: Tensor | None = None  # [N]: of the same images with random labels, if asked

    def gathered(self, group: Group, count: int) -> PoolEstimate:
        """All processes' estimates of their parts of `count` tasks as one."""
        rows = {name: group.gather(mine, count) for name, mine in self.gradients.items()}
        scores = (self.losses, self.accuracies, self.reference_losses)
        return PoolEstimate(rows, *(group.gather(x, count) for x in scores if x is not None))


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

    Each different image is embedded once, with running statistics read and left alone. Tasks are
    scored a second time with the labels of a `reference`, the pool `with_random_labels`: cheap but
    for MAML. Rows of tasks whose numbers overflow are not finite. `only`: some of the tasks, with
    the numbers they have in the whole pool's estimate.
    """
    check_inputs(learner, images, pool)
    check_estimates(learner, estimates)
    rows: dict[str, list[Tensor]] = {name: [] for name in estimates if name != "exact"}
    found: list[tuple[Tensor, Tensor]] = []
    random: list[Tensor] = []
    pool, reference = pool[only], None if reference is None else reference[only]
    clock, device, done = clock or Clock(learner.device), learner.device, 0
    with clock.phase("estimating"), evaluation_mode(learner):
        for part in _parts(learner, images, pool, estimates, tasks_at_once, clock):
            labels = send(part.tasks.query_labels, device)
            adapted = part.adapt(send(part.tasks.support_labels, device))
            logits = part.logits(adapted)
            found.append(query_losses(logits, labels))
            wrong = _errors(logits, labels)
            for name, values in rows.items():
                values.append(_rows(name, learner, part, adapted, labels, wrong))
            if reference is not None:
                other = reference[done : done + len(part.tasks)]
                again = part.logits(part.adapt(send(other.support_labels, device)))
                random.append(query_losses(again, send(other.query_labels, device))[0])
            done += len(part.tasks)
        clock.settle("estimating")
    gradients = {name: torch.cat(values) for name, values in rows.items()}
    if "exact" in estimates:
        gradients["exact"] = exact_gradients(learner, images, pool)
    losses, accuracies = map(torch.cat, zip(*found, strict=True))
    return PoolEstimate(gradients, losses, accuracies, torch.cat(random) if random else None)


def exact_gradients(learner: Learner[Any], images: Table, pool: TaskPool) -> Tensor:
    """[N, P]: the gradient of each task's outer loss in all P trainable parameters.

    Second order where the learner is, in the order of `learner.parameters()`. BatchNorm reads its
    running statistics, so that a task's gradient does not depend on the others. One backward pass
    per task: memory for the answer and one task. 640 tasks of CNN4 are 300 MB.
    """
    parameters = [value for value in learner.parameters() if value.requires_grad]
    if not parameters:
        raise DertsError("the learner has no trainable parameter; use another estimate than exact")
    size = sum(value.numel() for value in parameters)
    found = torch.empty(len(pool), size, dtype=learner.dtype, device=learner.device)
    with evaluation_mode(learner), torch.enable_grad():
        for number, task in enumerate(pool.split(1)):
            loss = learner.outer_loss(images, task).loss
            parts = torch.autograd.grad(loss, parameters, materialize_grads=True)
            found[number] = torch.cat([part.flatten() for part in parts])
    return found


def usable_estimates(learner: Learner[Any]) -> tuple[str, ...]:
    """The names of the estimates that a learner knows."""
    return tuple(name for name in ESTIMATES if learner.embeds or name not in NEED_FEATURES)


def check_estimates(learner: Learner[Any], names: Sequence[str]) -> None:
    """Refuse names of estimates that a learner does not know."""
    usable, kind = usable_estimates(learner), type(learner).__name__
    for name in names:
        fix = f"choose from {', '.join(usable)} (--strategy.estimate)"
        if name not in ESTIMATES:
            raise DertsError(f"no gradient estimate is called {name!r}; {fix}")
        if name not in usable:
            cause = f"so the estimate {name!r} does not exist"
            raise DertsError(f"{kind} has no features apart from the task, {cause}; {fix}")


def with_random_labels(pool: TaskPool, seed: int | Sequence[int | str]) -> TaskPool:
    """The same images with labels drawn at random, all equally likely."""
    source = generator(seed)
    return pool.relabelled(
        "chance",
        support_labels=torch.randint(pool.way, pool.support.shape, generator=source),
        query_labels=torch.randint(pool.way, pool.query.shape, generator=source),
    )


class _Part(NamedTuple):
    """Some tasks of a pool and how the learner classifies their query sets."""

    tasks: TaskPool
    adapt: Callable[[Tensor], Any]  # to support labels [T, S]
    logits: Callable[[Any], Tensor]  # what `adapt` gave -> [T, Q, way]
    start: Tensor | None  # logits before adaptation, where asked for and the learner has any
    query: Tensor | None = None  # features, where an estimate needs them


def _parts(
    learner: Learner[Any],
    images: Table,
    pool: TaskPool,
    names: Sequence[str],
    tasks_at_once: int,
    clock: Clock,
) -> Iterator[_Part]:
    """The pool in order, some tasks at a time; by inner products of features where they do."""
    asked, shots = "logit-theta" in names, pool.support.shape[1]
    if isinstance(learner, ProductLearner) and not set(names) & set(NEED_FEATURES):
        by_products = learner.logits_by_products
        for tasks, products, before in task_products(learner, images, pool, tasks_at_once, clock):
            start = before[:, shots:] if asked and isinstance(learner, ANIL) else None
            yield _Part(tasks, lambda labels: labels, partial(by_products, products, before), start)
        return
    rule = _rule(learner)
    for tasks, support, query in task_features(learner, images, pool, tasks_at_once, clock):
        start = None
        if asked and isinstance(rule, ANIL | MAML):
            start = learner.logits(rule.start(len(tasks)), query)

        def logits(adapted: Any, query: Tensor = query) -> Tensor:
            return learner.logits(adapted, query)

        yield _Part(tasks, partial(learner.adapt, support), logits, start, query)


def _rule(learner: Learner[Any]) -> Learner[Any] | None:
    return learner.rule if isinstance(learner, OwnLearner) else learner


def _errors(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits [T, Q, way], labels [T, Q] -> p − y [T, Q, way]."""
    return logits.softmax(-1) - F.one_hot(labels, logits.shape[-1]).to(logits.dtype)


def _rows(
    name: str, learner: Learner[Any], part: _Part, adapted: Any, labels: Tensor, wrong: Tensor
) -> Tensor:
    """One estimate [T, dim] of some tasks; `wrong` is p − y [T, Q, way] after adaptation."""
    if name == "logit-theta" and part.start is not None:
        return _errors(part.start, labels).sum(1)
    if name in ("logit-theta", "logit"):
        return wrong.sum(1)
    if name == "error-profile":
        given = F.one_hot(labels, wrong.shape[-1]).to(wrong.dtype)
        return (given.transpose(1, 2) @ wrong).flatten(1)
    assert part.query is not None
    if name == "last-layer":
        # what the last layer multiplies by its weights: ANIL scales its features first
        rule = _rule(learner)
        scale = rule.feature_scale if isinstance(rule, ANIL) else 1.0
        return (wrong.transpose(1, 2) @ (part.query * scale)).flatten(1)
    with torch.enable_grad():  # of each image's cross-entropy in its features: Wᵀ(p − y)
        features = part.query.detach().requires_grad_()
        logits = learner.logits(adapted, features).flatten(0, 1)
        total = F.cross_entropy(logits, labels.flatten(), reduction="sum")
        (slopes,) = torch.autograd.grad(total, features)
    return (slopes * part.query).mean(1)
