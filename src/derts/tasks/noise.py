"""Label noise for training tasks (evaluation tasks are always clean)."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from derts.errors import DertsError

Integers = NDArray[np.int64]
Noised = tuple[Integers, Integers, Integers]
Random = np.random.Generator


class Noise(Protocol):
    """Takes image slots and their labels, returns slots, given labels and true labels."""

    def apply(self, slots: Integers, labels: Integers, random: Random) -> Noised:
        """All are int64 [tasks, way, images per class]; what comes in is left as it is."""
        ...


@dataclass(frozen=True)
class SwapNoise:
    """The paper's Algorithm 2: images of two classes are swapped.

    For each class, min(Poisson(rate), limit) times: an image of the class and an image of one of
    the other classes exchange their labels. Images may be exchanged again. Slots are then split
    by given label, so that every class keeps its shots. With 20 images per class and limit 10,
    rate 3.02 mislabels 25% and rate 5.62 mislabels 40%.
    """

    rate: float
    limit: int = 10

    def __post_init__(self) -> None:
        if min(self.rate, self.limit) < 0:
            raise DertsError(f"swap noise of rate {self.rate}, limit {self.limit}: give at least 0")

    def apply(self, slots: Integers, labels: Integers, random: Random) -> Noised:
        tasks, way, count = slots.shape
        flat = np.arange(slots.size)  # the place, before noise, of what is at each place now
        if way > 1:
            for first, second in zip(*self._swaps(tasks, way, count, random), strict=True):
                flat[first], flat[second] = flat[second], flat[first]
        images, true = (np.take(values, flat).reshape(slots.shape) for values in (slots, labels))
        return images, labels, true

    def _swaps(self, tasks: int, way: int, count: int, random: Random) -> Integers:
        """int64 [2, swaps, tasks]: places that are exchanged, one swap after another."""
        logs = [  # of Poisson's chances of 0, 1, …, limit − 1
            k * math.log(self.rate) - self.rate - math.lgamma(k + 1) if self.rate else -math.inf * k
            for k in range(self.limit)
        ]
        most = np.exp(logs).cumsum()
        wanted = np.searchsorted(most, random.random((tasks, way)), side="right")
        owner = np.repeat(np.tile(np.arange(way), tasks), wanted.ravel())  # class of each swap
        totals = wanted.sum(1)
        task = np.repeat(np.arange(tasks), totals)
        step = np.arange(len(task)) - np.repeat(totals.cumsum() - totals, totals)
        other = (owner + random.integers(1, way, len(task))) % way
        within = random.integers(0, count, (2, len(task)))
        begin = np.arange(tasks) * way * count
        places = np.broadcast_to(begin, (2, int(totals.max()), tasks)).copy()
        places[:, step, task] = begin[task] + np.stack((owner, other)) * count + within
        return places


@dataclass(frozen=True)
class TaskNoise:
    """As in ATS: in a fraction of tasks each label becomes, by chance, another of the task."""

    fraction: float
    flip: float = 0.8

    def __post_init__(self) -> None:
        if not (0 <= self.fraction <= 1 and 0 <= self.flip <= 1):
            raise DertsError(f"task noise {self.fraction}, flip {self.flip}: give between 0 and 1")

    def apply(self, slots: Integers, labels: Integers, random: Random) -> Noised:
        tasks, way, _ = slots.shape
        corrupted = random.random((tasks, 1, 1)) < self.fraction
        flips = (random.random(labels.shape) < self.flip) & corrupted
        steps = random.integers(1, max(way, 2), labels.shape)
        return slots, np.where(flips, (labels + steps) % way, labels), labels
