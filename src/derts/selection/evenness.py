"""Does a pool of tasks need a selection? Where most rows repeat each other and a few do not."""

from __future__ import annotations

import torch
from torch import Tensor

from derts.facility_location import select

LOOKED_AT = 256  # rows: a pool is in random order, so the first are a fair sample
CHOSEN = 0.3  # of them: of a tenth it is harder to tell how even they are
CHANCES = 8  # random choices, of which the mean counts
LONGEST_REST = 4
"""Rounds of random tasks after which a pool is looked at again, at the latest."""
EVEN = 0.8
"""Rows of at least this evenness are even: about 1 in clean pools of mini-ImageNet, far less where
nine in ten tasks are of a few classes (research/log.md)."""


def evenness(rows: Tensor, random: torch.Generator) -> float:
    """How much better than chance facility location covers rows [N, d], against an even cloud.

    To cover is to be near: Σ of distances from all rows to the nearest chosen one, over the same
    for as many random ones. That is less than 1 for any rows, and depends on their dimension; so
    it is divided by what it is for a Gaussian cloud of as many rows with the same covariance.
    About 1: even. Near 0: most rows repeat each other, and a random choice misses the others.

    >>> random = torch.Generator().manual_seed(0)
    >>> cloud = torch.randn(400, 5, generator=random)
    >>> heaps = torch.cat((cloud[:40], cloud[:3].repeat(120, 1)))
    >>> f"{evenness(cloud, random):.1f} {evenness(heaps, random):.1f}"
    '1.0 0.0'
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
