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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.classification import Classified, classified
from derts.clock import Clock
from derts.data.table import ImageTable
from derts.distributed import Group
from derts.errors import DertsError
from derts.learners.anil import ANIL
from derts.learners.base import Learner, query_losses
from derts.learners.embedding import evaluation_mode
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
    errors      [N] Σ over the query of ‖p − y‖ after adaptation
    accuracies  [N] share of the query labelled as given after adaptation

    reference_losses and reference_errors [N] are those of the same images with random labels, for
    `derts.selection.noisy_tasks.find_noisy`, probabilities [N, Q, way] those of the query's labels
    after adaptation; None where they were not asked for.
    """

    gradients: dict[str, Tensor]
    losses: Tensor
    errors: Tensor
    accuracies: Tensor
    reference_losses: Tensor | None = None
    reference_errors: Tensor | None = None
    probabilities: Tensor | None = None

    def gathered(self, group: Group, count: int) -> PoolEstimate:
        """All processes' estimates of their parts of `count` tasks as one."""
        if group.alone:
            return self
        values = [self.losses, self.errors, self.accuracies]
        others = [self.reference_losses, self.reference_errors, self.probabilities]
        return PoolEstimate(
            {name: group.gather(rows, count) for name, rows in self.gradients.items()},
            *(group.gather(value, count) for value in values),
            *(None if value is None else group.gather(value, count) for value in others),
        )


def estimate_gradients(
    learner: Learner[Any], images: ImageTable, pool: TaskPool, estimate: str = "logit"
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
    images: ImageTable,
    pool: TaskPool,
    estimates: Sequence[str] = ("logit",),
    tasks_at_once: int = 256,
    reference: TaskPool | None = None,
    probabilities: bool = False,
    clock: Clock | None = None,
    only: slice = slice(None),
) -> PoolEstimate:
    """All named estimates, losses and errors of a pool from one pass, without a graph.

    Each different image is embedded once, with running statistics read and left alone. With a
    `reference`, the pool `with_random_labels`, every task is scored a second time with those: the
    images are not embedded again, so this is cheap, except for MAML. `probabilities` are kept if
    asked for. Rows of tasks whose numbers overflow are not finite: the caller decides what to do
    with them. A clock counts the time as "embedding" and "estimating". `only` estimates but some
    of the tasks, with the numbers they have in the whole pool's estimate.
    """
    names = (estimates,) if isinstance(estimates, str) else tuple(estimates)
    _check(learner, pool, names)
    rows: dict[str, list[Tensor]] = {name: [] for name in names if name != "exact"}
    found: list[_Scores] = []
    by_chance: list[_Scores] = []
    beliefs: list[Tensor] = []
    pool, reference = pool[only], None if reference is None else reference[only]
    clock = clock or Clock(learner.device)
    kept = bool(set(names) & set(NEED_FEATURES))
    start = "logit-theta" in names
    with clock.phase("estimating"), evaluation_mode(learner):
        for part in classified(
            learner, images, pool, reference, tasks_at_once, clock, start=start, features=kept
        ):
            wrong = _errors(part.logits, part.labels)
            found.append(_scores(part.logits, part.labels, wrong))
            if probabilities:
                beliefs.append(part.logits.softmax(-1))
            for name, values in rows.items():
                values.append(_rows(name, learner, part, wrong))
            if part.random is not None:
                logits, labels = part.random
                by_chance.append(_scores(logits, labels, _errors(logits, labels)))
        clock.settle("estimating")
    gradients = {name: torch.cat(values) for name, values in rows.items()}
    if "exact" in names:
        gradients["exact"] = exact_gradients(learner, images, pool)
    losses, errors, accuracies = map(torch.cat, zip(*found, strict=True))
    estimate = PoolEstimate(gradients, losses, errors, accuracies)
    if probabilities:
        estimate = replace(estimate, probabilities=torch.cat(beliefs))
    if reference is not None:
        chance = _Scores(*map(torch.cat, zip(*by_chance, strict=True)))
        estimate = replace(estimate, reference_losses=chance.losses, reference_errors=chance.errors)
    return estimate


def exact_gradients(
    learner: Learner[Any],
    images: ImageTable,
    pool: TaskPool,
    device: torch.device | str | None = None,
) -> Tensor:
    """[N, P]: the gradient of each task's outer loss in all P trainable parameters.

    Second order where the learner is, in the order of `learner.parameters()`. BatchNorm reads its
    running statistics, so that a task's gradient does not depend on the others. One backward pass
    per task: memory for the answer and one task. `device` holds the answer (by default the
    learner's): 640 tasks of CNN4 are 300 MB.

    >>> import derts
    >>> table = derts.ImageTable(torch.zeros(40, 16, 16, 1, dtype=torch.uint8),
    ...                          torch.arange(40) // 10, tuple("abcd"))
    >>> pool = derts.TaskPool.sample(table, tasks=2, way=3, shot=1, query=2, seed=0)
    >>> from derts.models import CNN4
    >>> learner = derts.ProtoNet(CNN4(channels=1, image_size=(16, 16), width=2), way=3)
    >>> exact_gradients(learner, table, pool).shape
    torch.Size([2, 142])
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
    if len(pool) == 0:
        raise DertsError("the pool has no tasks to estimate; draw at least one")


class _Scores(NamedTuple):
    """[T] each."""

    losses: Tensor
    errors: Tensor
    accuracies: Tensor


def _scores(logits: Tensor, labels: Tensor, wrong: Tensor) -> _Scores:
    losses, accuracies = query_losses(logits, labels)
    return _Scores(losses, wrong.norm(dim=-1).sum(1), accuracies)


def with_random_labels(pool: TaskPool, seed: int | Sequence[int | str]) -> TaskPool:
    """The same images with labels drawn at random, all equally likely."""
    source = generator(seed)
    return replace(
        pool,
        support_labels=torch.randint(pool.way, pool.support.shape, generator=source),
        query_labels=torch.randint(pool.way, pool.query.shape, generator=source),
    )


def _errors(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits [T, Q, way], labels [T, Q] -> p − y [T, Q, way]."""
    return logits.softmax(-1) - F.one_hot(labels, logits.shape[-1]).to(logits.dtype)


def _rows(name: str, learner: Learner[Any], part: Classified, wrong: Tensor) -> Tensor:
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
