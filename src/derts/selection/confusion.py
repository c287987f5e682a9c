"""Confused pairs: the tasks whose classes the model takes for each other.

A task's own loss is as much luck of its few images as it is its classes. What a pair of classes
costs is seen in all of a pool's tasks that have both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from derts.selection.choice import CONFUSION, Candidates, Picked


def pick_confused(candidates: Candidates) -> Picked:
    """The candidates whose pairs of classes are confused most, over the whole pool."""
    assert candidates.classes is not None  # a strategy checks it before its first round
    scores = confusion(candidates.estimate.gradients[CONFUSION], candidates.classes)
    order = scores[candidates.indices].argsort(descending=True, stable=True)[: candidates.count]
    return Picked(candidates.indices[order], torch.ones(candidates.count))


def confusion(profiles: Tensor, classes: Tensor) -> Tensor:
    """float64 [N]: how much a pool's tasks confuse the pairs of classes that each task has.

    profiles [N, way²] are `error-profile` estimates, classes [N, way] the classes behind the
    labels. A pair's confusion is the probability that images of one are given to the other, either
    way, averaged over the tasks with both; a task's is the mean over its pairs. Tasks whose
    numbers are not finite do not count.

    >>> one = torch.tensor([[-0.5, 0.5, 0.1, -0.1]])  # half of class 0 is taken for class 1
    >>> two = torch.tensor([[-0.1, 0.1, 0.1, -0.1]])
    >>> confusion(torch.cat([one, two, two]), torch.tensor([[3, 7], [3, 7], [4, 7]]))
    tensor([0.2000, 0.2000, 0.1000], dtype=torch.float64)
    """
    way = classes.shape[1]
    mass = profiles.cpu().double().unflatten(1, (way, way)) * (1 - torch.eye(way))
    usable = mass.isfinite().all(2).all(1)
    first, second = classes[:, :, None], classes[:, None, :]
    pair = torch.minimum(first, second) * (int(classes.max()) + 1) + torch.maximum(first, second)
    kinds, pair = pair.unique(return_inverse=True)
    taken, seen = torch.zeros(2, len(kinds), dtype=torch.float64)
    taken.index_add_(0, pair[usable].flatten(), mass[usable].flatten())
    seen.index_add_(0, pair[usable].flatten(), torch.ones_like(mass[usable]).flatten())
    rate: Tensor = taken / seen.clamp(min=1)
    return rate[pair].sum((1, 2)) / max(way * (way - 1), 1)
