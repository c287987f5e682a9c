"""Where the time goes: seconds per named phase, measured and read from a run's events."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

SELECTION_PHASES = ("pool", "embedding", "estimating", "selecting", "labels")
"""Phases that a strategy spends on choosing tasks and judging labels."""
TRAINING_PHASES = ("tasks", "update", *SELECTION_PHASES)
"""All of training; evaluation and checkpoints are apart."""


class Clock:
    """Adds up the seconds of each phase; time in a phase within a phase counts for the inner one.

    On a GPU, work runs behind the program's back: call `settle` before reading the seconds.
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


def spent_since(before: Mapping[str, float], seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each phase between two readings of a clock; phases without any are left out."""
    spent = {name: round(now - before.get(name, 0.0), 6) for name, now in seconds.items()}
    return {name: value for name, value in spent.items() if value}


def training_seconds(seconds: Mapping[str, float]) -> float:
    """Seconds of training, without evaluation and checkpoints."""
    return sum(seconds.get(name, 0.0) for name in TRAINING_PHASES)


def share_of_selection(seconds: Mapping[str, float]) -> float:
    """Share of the training time that went into choosing tasks."""
    chosen = sum(seconds.get(name, 0.0) for name in SELECTION_PHASES)
    return chosen / max(training_seconds(seconds), 1e-9)


def seconds_per_update(events: Iterable[Mapping[str, Any]], warmup: int) -> float | None:
    """Training time per update, from a run's events, where it can be without warm-up and starts.

    >>> events = [{"event": "start", "update": 0}]
    >>> events += [{"event": "update", "update": at, "seconds": {"update": taken}}
    ...            for at, taken in ((10, 60.0), (20, 2.0), (30, 4.0))]
    >>> seconds_per_update(events, warmup=10)
    0.3
    """
    begun, fresh = 0, False
    stretches: dict[tuple[bool, bool], list[tuple[int, float]]] = {}
    for event in events:
        if event["event"] == "start":
            fresh = True
        elif event["event"] == "update":
            stretch = event["update"] - begun, training_seconds(event["seconds"])
            stretches.setdefault((begun >= warmup, not fresh), []).append(stretch)
            begun, fresh = event["update"], False
    if not stretches:
        return None
    updates, seconds = map(sum, zip(*stretches[max(stretches)], strict=True))
    return round(seconds / updates, 6)


def selection_share(events: Iterable[Mapping[str, Any]], warmup: int) -> float:
    """Share of the training time after the warm-up that went into choosing tasks."""
    spent: Counter[str] = Counter()
    for event in events:
        if event["event"] == "update" and event["update"] > warmup:
            spent.update(event["seconds"])
    return round(share_of_selection(spent), 6)
