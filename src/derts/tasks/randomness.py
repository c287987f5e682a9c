"""Seeded generators that never share a stream by accident."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch


def generator(seed: int | Sequence[int | str]) -> torch.Generator:
    """A CPU generator for a seed, or for a seed with a path: (seed, "pool", 3).

    >>> same = torch.rand(2, generator=generator((1, "pool"))).tolist()
    >>> same == torch.rand(2, generator=generator((1, "pool"))).tolist()
    True
    """
    parts = (seed,) if isinstance(seed, int) else tuple(seed)
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    random = torch.Generator()
    random.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return random
