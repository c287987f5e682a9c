"""Where the time goes: seconds per named phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

SELECTION_PHASES = ("pool", "embedding", "estimating", "selecting")
"""Phases that a strategy spends on choosing tasks."""
TRAINING_PHASES = ("tasks", "update", *SELECTION_PHASES)
"""All of training; evaluation and checkpoints are apart."""


class Clock:
    """Adds up the seconds of each phase; time in a phase within a phase counts for the inner one.

    On a GPU, work runs behind the program's back; `settle` waits for it and counts the wait
    towards the phase named, so call it before reading the seconds.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside the block towards a phase."""
        start = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            own = spent - self._inner.pop()
            self._inner[-1] += spent
            self.seconds[name] = self.seconds.get(name, 0.0) + own

    def settle(self, name: str) -> None:
        """Wait for the device, counting the wait towards a phase."""
        if self.device.type == "cuda":
            with self.phase(name):
                torch.cuda.synchronize(self.device)
