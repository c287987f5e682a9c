"""Label noise for training tasks (evaluation tasks are always clean)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from derts.errors import DertsError

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
        counts = counts.clamp_(max=self.limit).long()
        images = slots.reshape(tasks, -1).clone()
        true = labels.reshape(tasks, -1).clone()
        for number in range(way if way > 1 else 0):
            for turn in range(int(counts[:, number].max())):
                active = (counts[:, number] > turn).nonzero().squeeze(1)
                step = torch.randint(1, way, active.shape, generator=random)
                here = torch.randint(count, active.shape, generator=random)
                there = torch.randint(count, active.shape, generator=random)
                first = number * count + here
                second = (number + step) % way * count + there
                for values in (images, true):
                    kept = values[active, first]
                    values[active, first] = values[active, second]
                    values[active, second] = kept
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
