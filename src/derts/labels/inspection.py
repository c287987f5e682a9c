"""Which images look mislabelled: each is compared with the class means of a trained embedding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.learners.base import Learner
from derts.learners.embedding import evaluation_mode
from derts.models.batch_norm import set_context
from derts.progress import Advance
from derts.tasks.randomness import generator

AT_ONCE = 256  # images in a forward pass
ROWS = 4096  # images whose distances to all classes are held at once


@dataclass(frozen=True)
class Suspect:
    """An image, its class, the other class that it is nearest to, and how much nearer.

    margin  squared distance to the mean of its own class without it, minus that to the nearest
            other class mean, of centred features of length 1: above 0 it looks mislabelled
    """

    index: int
    class_name: str
    looks_like: str
    margin: float


@dataclass(frozen=True)
class SuspectClass:
    """A class: its judged images, the share that looks mislabelled, and what they look like most.

    looks_like is empty where no image looks mislabelled.
    """

    class_name: str
    looks_like: str
    images: int
    suspicious: float
    margin: float


def image_features(
    learner: Learner[Any],
    images: ImageTable,
    advance: Advance = lambda count=1, note=None: None,
) -> torch.Tensor:
    """Features float32 [n, dim] of all images of a table, on the CPU."""
    # in random order: MAML normalises a batch by itself, and a batch of one class would lose it
    order = torch.randperm(len(images), generator=generator((0, "inspection")))
    found: list[torch.Tensor] = []
    with evaluation_mode(learner):
        for part in order.split(AT_ONCE):
            pixels = images.gather(part).to(learner.device)
            if learner.embeds:
                features = learner.features(pixels[None])[0]
            else:
                set_context(learner.backbone, len(part))
                features = learner.embedding.run(learner.backbone, pixels, learner.dtype)
            found.append(features.float().cpu())
            advance(len(part))
    return torch.cat(found)[order.argsort()]


def rank_images(features: torch.Tensor, images: ImageTable) -> list[Suspect]:
    """The images of a table by how mislabelled they look, by their features [n, dim].

    An image that is alone in its class cannot be judged and is left out.

    >>> table = ImageTable(torch.zeros(5, 2, 2, 1, dtype=torch.uint8),
    ...                    torch.tensor([0, 0, 1, 1, 1]), ("cat", "dog"))
    >>> ranked = rank_images(torch.tensor([[0.0], [0.2], [1.0], [1.1], [0.1]]), table)
    >>> (ranked[0].index, ranked[0].class_name, ranked[0].looks_like)
    (4, 'dog', 'cat')
    """
    labels, classes = images.labels, len(images.class_names)
    counts = torch.bincount(labels, minlength=classes)
    if int((counts > 0).sum()) < 2:
        raise DertsError(f"split {images.split!r} has fewer than two classes: nothing to compare")
    features = F.normalize(features - features.mean(0))
    sums = torch.zeros(classes, features.shape[1]).index_add(0, labels, features)
    means = sums / counts.clamp(min=1)[:, None]
    found: list[Suspect] = []
    for rows in torch.arange(len(labels)).split(ROWS):
        own = labels[rows]
        rows, own = rows[counts[own] > 1], own[counts[own] > 1]
        others = torch.cdist(features[rows], means)
        others[:, counts == 0] = torch.inf
        other, nearest = others.scatter(1, own[:, None], torch.inf).min(1)
        rest = (sums[own] - features[rows]) / (counts[own] - 1)[:, None]
        margins = (features[rows] - rest).square().sum(1) - other.square()
        for index, label, like, margin in zip(
            rows.tolist(), own.tolist(), nearest.tolist(), margins.tolist(), strict=True
        ):
            names = images.class_names
            found.append(Suspect(index, names[label], names[like], margin))
    return sorted(found, key=lambda one: -one.margin)


def rank_classes(suspects: Sequence[Suspect]) -> list[SuspectClass]:
    """Classes by the share of their images that look mislabelled, then by their mean margin."""
    groups: dict[str, list[Suspect]] = {}
    for suspect in suspects:
        groups.setdefault(suspect.class_name, []).append(suspect)
    ranked = []
    for name, members in sorted(groups.items()):
        taken = Counter(one.looks_like for one in members if one.margin > 0)
        like = taken.most_common(1)[0][0] if taken else ""
        margin = sum(one.margin for one in members) / len(members)
        share = taken.total() / len(members)
        ranked.append(SuspectClass(name, like, len(members), share, margin))
    return sorted(ranked, key=lambda one: (-one.suspicious, -one.margin))
