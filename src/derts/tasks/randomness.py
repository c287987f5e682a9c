"""Seeded generators that never share a stream by accident, and torch's own begun at a seed."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

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


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Within the block torch's random numbers on the CPU begin at a seed; afterwards they go on as
    if nothing had been drawn. `torch.manual_seed` would begin those of every GPU anew as well.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _digest(seed: Seed) -> bytes:
    parts = (seed,) if isinstance(seed, int) else seed
    return hashlib.sha256("/".join(map(str, parts)).encode()).digest()
