"""Do the tasks of a pool repeat each other? By the classes they have, or by their gradients."""

import torch
from torch import Tensor

from derts.facility_location import select

BY_CHANCE = 4.0  # times the spread that even draws have: even ones do not come to that
UNEVEN = 0.25  # squared, how much frequencies vary beside their mean: by half of it

LOOKED_AT = 256  # rows: a pool is in random order, so the first are a fair sample
CHOSEN = 0.3  # of them: of a tenth it is harder to tell how even they are
CHANCES = 8  # random choices, of which the mean counts
EVEN = 0.8
"""Rows of at least this evenness are even: about 1 in clean pools of mini-ImageNet, far less where
nine in ten tasks are of a few classes (research/log.md)."""


def are_uneven(classes: Tensor) -> bool:
    """Whether some classes are in many more tasks of `classes` [N, way] than others.

    By enough to matter, and by more than chance: even draws have N · way / C tasks of each.
    """
    counts = classes.unique(return_counts=True)[1].double()
    mean, share = float(counts.mean()), classes.shape[1] / len(counts)
    by_chance = mean * (1 - share)
    spread = float((counts - mean).square().mean())
    return spread > BY_CHANCE * by_chance and spread - by_chance > UNEVEN * mean**2


def balanced_size(classes: Tensor) -> int:
    """How many tasks have each class as often as the median class is in `classes` [N, way].

    >>> balanced_size(torch.tensor([[0, 1]] * 8 + [[2, 3], [4, 5]]))
    3
    """
    counts = classes.unique(return_counts=True)[1]
    return int(counts.median()) * len(counts) // classes.shape[1]


def balance_classes(classes: Tensor, count: int, random: torch.Generator) -> Tensor:
    """int64 [count]: of tasks with `classes` [N, way], one whose classes are in the fewest so far
    after the other.
    """
    occurring, ranks = classes.unique(return_inverse=True)
    order = torch.randperm(len(classes), generator=random)
    ranks = ranks[order]
    has = torch.zeros(len(occurring), len(classes)).scatter_(0, ranks.T, 1.0)
    used = torch.zeros(len(classes))  # how often the classes of each task are, together
    chosen = []
    for _ in range(count):
        place = int(used.argmin())
        used += has[ranks[place]].sum(0)
        used[place] = torch.inf
        chosen.append(place)
    return order[torch.tensor(chosen, dtype=torch.long)]


def evenness(rows: Tensor, random: torch.Generator) -> float:
    """How much better than chance facility location covers rows [N, d], against an even cloud.

    To cover is to be near: Σ of distances from all rows to the nearest chosen one, over the same
    for as many random ones. That is less than 1 for any rows, and depends on their dimension; so
    it is divided by what it is for a Gaussian cloud of as many rows with the same covariance.
    About 1: even. Near 0: most rows repeat each other, and a random choice misses the others.
    """
    some = rows.detach()[:LOOKED_AT].double().cpu()
    count = max(1, round(CHOSEN * len(some)))
    centred = some - some.mean(0)
    mixing = torch.randn(len(some), len(some), generator=random, dtype=some.dtype)
    mixing /= len(some) ** 0.5
    cloud = mixing @ centred  # Gaussian rows with the covariance of these
    found, even = (_left(each, count, random) for each in (some, cloud))
    return found / even if even > 0 else 1.0


def _left(rows: Tensor, count: int, random: torch.Generator) -> float:
    """What a selection leaves of the distance that chance leaves; 1 where nothing is left."""
    distances = torch.cdist(rows, rows)
    orders = torch.rand(CHANCES, len(rows), generator=random).argsort(1)
    ours = float(distances[:, select(rows, count).indices].amin(1).sum())
    theirs = float(distances[:, orders[:, :count]].amin(2).sum()) / CHANCES
    return ours / theirs if theirs > 0 else 1.0
