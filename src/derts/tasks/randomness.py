"""Seeded generators that never share a stream by accident."""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch

Seed = int | Sequence[int | str]
"""A seed, or a seed with a path: (seed, "pool", 3)."""


def generator(seed: Seed) -> torch.Generator:
    """A CPU generator of torch for a seed with or without a path."""
    random = torch.Generator()
    random.manual_seed(int.from_bytes(_digest(seed)[:8], "little") >> 1)
    return random


def numpy_generator(seed: Seed) -> np.random.Generator:
    """The same of numpy, whose small draws cost less and never wait for other threads."""
    return np.random.Generator(np.random.PCG64(int.from_bytes(_digest(seed)[:16], "little")))


def _digest(seed: Seed) -> bytes:
    parts = (seed,) if isinstance(seed, int) else seed
    return hashlib.sha256("/".join(map(str, parts)).encode()).digest()
