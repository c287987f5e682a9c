"""Label noise for training tasks (evaluation tasks are always clean)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from derts.errors import DertsError

Integers = NDArray[np.int64]
Noisy = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Noise(Protocol):
    """Takes image slots and their labels, returns slots, given labels and true labels."""

    def apply(self, slots: torch.Tensor, labels: torch.Tensor, random: torch.Generator) -> Noisy:
        """All three are int64 [tasks, way, images per class]."""
        ...


@dataclass(frozen=True)
class SwapNoise:
    """The paper's Algorithm 2: images change places between classes.

    For each class, min(Poisson(rate), limit) times: an image of the class and an image of one of
    the other classes exchange their labels. Images may be exchanged again. Slots are then split
    by given label, so that every class keeps its shots. With 20 images per class and limit 10,
    rate 3.02 mislabels 25% and rate 5.62 mislabels 40%.
    """

    rate: float
    limit: int = 10

    def __post_init__(self) -> None:
        if self.rate < 0 or self.limit < 0:
            raise DertsError(
                f"swap noise needs rate and limit of at least 0, not {self.rate} and {self.limit}"
            )

    def apply(self, slots: torch.Tensor, labels: torch.Tensor, random: torch.Generator) -> Noisy:
        tasks, way, count = slots.shape
        counts = torch.poisson(torch.full((tasks, way), self.rate), generator=random)
        wanted = counts.clamp_(max=self.limit).long().numpy()
        # in numpy: so many small steps cost torch more than they do
        order = np.tile(np.arange(way * count), (tasks, 1))

        def drawn(least: int, most: int, size: int) -> Integers:
            numbers: Integers = torch.randint(least, most, (size,), generator=random).numpy()
            return numbers

        for number in range(way if way > 1 else 0):
            for turn in range(int(wanted[:, number].max())):
                active = np.flatnonzero(wanted[:, number] > turn)
                step = drawn(1, way, len(active))
                first = number * count + drawn(0, count, len(active))
                second = (number + step) % way * count + drawn(0, count, len(active))
                kept = order[active, first]
                order[active, first] = order[active, second]
                order[active, second] = kept
        places = torch.from_numpy(order)
        images, true = (values.reshape(tasks, -1).gather(1, places) for values in (slots, labels))
        return images.view_as(slots), labels, true.view_as(labels)


@dataclass(frozen=True)
class TaskNoise:
    """As in ATS: a fraction of the tasks is corrupted; there each label flips with a probability.

    A flipped label becomes one of the other labels of the task, all equally likely.
    """

    fraction: float
    flip: float = 0.8

    def __post_init__(self) -> None:
        if not (0 <= self.fraction <= 1 and 0 <= self.flip <= 1):
            raise DertsError(
                f"task noise needs fraction and flip between 0 and 1, not {self.fraction} "
                f"and {self.flip}"
            )

    def apply(self, slots: torch.Tensor, labels: torch.Tensor, random: torch.Generator) -> Noisy:
        tasks, way, _ = slots.shape
        corrupted = torch.rand(tasks, 1, 1, generator=random) < self.fraction
        flips = (torch.rand(labels.shape, generator=random) < self.flip) & corrupted
        steps = torch.randint(1, max(way, 2), labels.shape, generator=random)
        return slots, torch.where(flips, (labels + steps) % way, labels), labels
