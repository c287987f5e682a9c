"""Which classes and images look mislabelled: a trained model looks at many tasks of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from derts.data.table import ImageTable
from derts.learners.base import Learner, query_losses
from derts.learners.embedding import evaluation_mode, task_features
from derts.progress import Advance
from derts.selection.noisy_tasks import find_noisy
from derts.tasks.pool import TaskPool
from derts.tasks.randomness import generator

AT_ONCE = 512  # tasks
FIRST = 100


@dataclass(frozen=True, eq=False)
class Looks:
    """What a model thought of a pool of N tasks with Q query images each.

    given      float [N, Q]  probability of the given label
    predicted  int64 [N, Q]  the table's class that it looked most like
    mistaken   bool [N, Q]   whether another label was likelier
    dropped    bool [N]      whether the task looks noisy
    """

    given: torch.Tensor
    predicted: torch.Tensor
    mistaken: torch.Tensor
    dropped: torch.Tensor


@dataclass(frozen=True)
class Suspect:
    """A class or an image, with how often its tasks were dropped and it was mistaken."""

    index: int
    class_name: str
    looks_like: str
    seen: int
    mistaken: float
    dropped: float
    probability: float


def look_at(
    learner: Learner[Any],
    images: ImageTable,
    pool: TaskPool,
    seed: int = 0,
    advance: Advance = lambda count=1, note=None: None,
) -> Looks:
    """Adapt to each task, classify its query, and find the tasks that look noisy."""
    random = generator((seed, "reference"))
    given, predicted, losses, reference = [], [], [], []
    with evaluation_mode(learner):
        for piece in pool.split(AT_ONCE):
            for part in task_features(learner, images, piece):
                labels = part.pool.query_labels.to(learner.device)
                adapted = learner.adapt(part.support, part.pool.support_labels.to(learner.device))
                logits = learner.logits(adapted, part.query)
                losses.append(query_losses(logits, labels)[0].cpu())
                shares = logits.softmax(-1)
                given.append(shares.gather(2, labels[..., None])[..., 0].float().cpu())
                predicted.append(shares.argmax(-1).cpu())
                reference.append(_random_loss(learner, part.support, part.query, random).cpu())
            advance(len(piece))
    found = torch.cat(predicted)
    split = find_noisy(torch.cat(losses), torch.cat(reference))
    return Looks(
        torch.cat(given),
        classes_of_labels(images, pool).gather(1, found),
        found != pool.query_labels,
        split.drop,
    )


def classes_of_labels(images: ImageTable, pool: TaskPool) -> torch.Tensor:
    """int64 [N, way]: the table's class that each label of a task stands for."""
    classes = torch.zeros(len(pool), pool.way, dtype=torch.int64)
    return classes.scatter(1, pool.true_support_labels, images.labels[pool.support])


def rank_images(images: ImageTable, pool: TaskPool, looks: Looks) -> list[Suspect]:
    """Every image that was a query, the most suspicious first: mistaken most, then least likely."""
    count = len(images)
    where = pool.query.reshape(-1)
    seen = torch.bincount(where, minlength=count)
    mistaken = _mean_by(where, looks.mistaken.reshape(-1), count)
    likely = _mean_by(where, looks.given.reshape(-1), count)
    members = torch.cat((pool.support, pool.query), 1)
    tasks = looks.dropped[:, None].expand_as(members)
    dropped = _mean_by(members.reshape(-1), tasks.reshape(-1), count)
    confused = _most_often_mistaken_for(images, where, looks)
    order = sorted(
        seen.nonzero().squeeze(1).tolist(),
        key=lambda index: (-float(mistaken[index]), float(likely[index])),
    )
    return [
        Suspect(
            index,
            images.class_names[int(images.labels[index])],
            confused.get(index, ""),
            int(seen[index]),
            float(mistaken[index]),
            float(dropped[index]),
            float(likely[index]),
        )
        for index in order
    ]


def _most_often_mistaken_for(
    images: ImageTable, where: torch.Tensor, looks: Looks
) -> dict[int, str]:
    """By image, the class that it was wrongly taken for most often."""
    wrong = looks.mistaken.reshape(-1)
    classes = len(images.class_names)
    pairs = where[wrong] * classes + looks.predicted.reshape(-1)[wrong]
    found, counts = pairs.unique(return_counts=True)
    rising = found[counts.argsort(stable=True)].tolist()  # the last of an image is its most common
    return {pair // classes: images.class_names[pair % classes] for pair in rising}


def rank_classes(images: ImageTable, suspects: Sequence[Suspect]) -> list[Suspect]:
    """Classes by how often their images were mistaken, then their tasks dropped."""
    groups: dict[str, list[Suspect]] = {}
    for suspect in suspects:
        groups.setdefault(suspect.class_name, []).append(suspect)
    ranked = []
    for name, members in groups.items():
        seen = sum(member.seen for member in members)
        confused = [member.looks_like for member in members if member.looks_like]

        def mean(key: str, members: list[Suspect] = members, seen: int = seen) -> float:
            return sum(float(getattr(one, key)) * one.seen for one in members) / seen

        ranked.append(
            Suspect(
                images.class_names.index(name),
                name,
                max(sorted(set(confused)), key=confused.count) if confused else "",
                seen,
                mean("mistaken"),
                mean("dropped"),
                mean("probability"),
            )
        )
    return sorted(ranked, key=lambda one: (-one.mistaken, -one.dropped))


def wrong_among_first(pool: TaskPool, looks: Looks, first: int = FIRST) -> tuple[int, int, float]:
    """Of the least likely query labels of a noisy pool: how many, how many are wrong, and the
    share of wrong labels in the pool.
    """
    wrong = (pool.query_labels != pool.true_query_labels).reshape(-1)
    order = looks.given.reshape(-1).argsort(stable=True)[:first]
    return len(order), int(wrong[order].sum()), float(wrong.float().mean())


def enough_tasks(images: ImageTable, way: int, query: int, sights: int = 20) -> int:
    """So many tasks that each image is a query about `sights` times; at most 20,000."""
    return max(100, min(20_000, -(-sights * len(images) // (way * query))))


def _random_loss(
    learner: Learner[Any], support: torch.Tensor, query: torch.Tensor, random: torch.Generator
) -> torch.Tensor:
    way = int(getattr(learner, "way"))  # noqa: B009  every learner of ours has one
    tasks, shots, asked = len(support), support.shape[1], query.shape[1]
    labels = torch.randint(way, (tasks, shots), generator=random).to(learner.device)
    targets = torch.randint(way, (tasks, asked), generator=random).to(learner.device)
    return query_losses(learner.logits(learner.adapt(support, labels), query), targets)[0]


def _mean_by(where: torch.Tensor, values: torch.Tensor, count: int) -> torch.Tensor:
    """Mean of values [n] at each place 0 … count − 1."""
    total = torch.bincount(where, values.double(), minlength=count)
    return total / torch.bincount(where, minlength=count).clamp(min=1)
