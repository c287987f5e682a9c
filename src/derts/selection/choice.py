"""A round's tasks and what was chosen of them, for training, log and record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from derts.gradients import PoolEstimate
from derts.selection.weights import scale_to_mean_one
from derts.tasks.pool import TaskPool
from derts.tasks.randomness import generator

Seed = tuple[int | str, ...]


@dataclass(frozen=True)
class DrawnPool:
    """A round's tasks.

    pool        as they are scored and trained on
    given       as they were drawn, where that is another pool
    reference   the pool labelled at random, where the drop asks for it
    relabelled  share of labels that votes changed (None: no votes)
    note        what could not be done, and what to do about it
    """

    pool: TaskPool
    given: TaskPool
    reference: TaskPool | None = None
    relabelled: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Choice:
    """What a round trains on. All tensors on the CPU; N tasks in the pool.

    batches    lists of pool indices, in the order of training
    weights    float [N]   weight of each task in `batches`, else 0; a round scales them to mean 1
    selected   int64 [K]   pool indices that were selected, before a drop after selecting
    select     how: facility-location, balanced, uniform, random (selecting does not pay), …
    estimate   what was seen of the pool (None: nothing was looked at)
    gradients  [N, d]      the estimated gradients that decided
    drop       bool [N]    tasks that look noisy (None: nothing was asked to be dropped)
    threshold, objective, evenness  of drop, facility location and redundancy; None: not computed
    not_finite tasks left out because their numbers overflowed
    """

    batches: tuple[torch.Tensor, ...]
    weights: torch.Tensor
    selected: torch.Tensor
    select: str
    estimate: PoolEstimate | None = None
    gradients: torch.Tensor | None = None
    drop: torch.Tensor | None = None
    threshold: float | None = None
    objective: float | None = None
    evenness: float | None = None
    not_finite: int = 0

    @property
    def at_random(self) -> bool:
        """Whether random tasks are trained on instead: no task of the pool is preferred."""
        return self.select == "random"

    @property
    def kept(self) -> torch.Tensor:
        """int64: pool indices that are trained on."""
        return torch.cat(self.batches)

    def settled(self) -> Choice:
        """With weights of mean 1 over what is trained on; all alike where that is random tasks."""
        if self.at_random:
            nothing = torch.zeros(0, dtype=torch.long)
            return replace(self, selected=nothing, weights=torch.ones_like(self.weights))
        weights, kept = torch.zeros_like(self.weights), self.kept
        weights[kept] = scale_to_mean_one(self.weights[kept])
        return replace(self, weights=weights)

    def numbers(self) -> dict[str, Any]:
        """For the log: sizes, limits, and how even the weights are."""
        weights = self.weights[self.kept]
        effective = float(weights.sum().square() / weights.square().sum())
        return {
            "pool": len(self.weights),
            "selected": len(self.selected),
            "kept": len(self.kept),
            "looks_noisy": 0 if self.drop is None else int(self.drop.sum()),
            "not_finite": self.not_finite,
            "threshold": self.threshold,
            "objective": self.objective,
            "largest_weight": round(float(weights.max()), 4),
            "effective_tasks": round(effective, 2),
            **({} if self.evenness is None else {"evenness": self.evenness}),
        }

    def parts(self, drawn: DrawnPool) -> dict[str, dict[str, Any]]:
        """For the log: which parts of the method acted, and the share of wrong labels in the pool,
        in what was selected, dropped and trained on. No strategy decides by the true labels.
        """
        wrong, drop = drawn.pool.mislabelled(), self.drop
        nothing = wrong[:0]
        noise = {
            "pool": drawn.given.mislabelled(),
            "selected": wrong[self.selected],
            "dropped": nothing if drop is None else wrong[drop],
            "kept": wrong if self.at_random else wrong[self.kept],  # random ones are alike
        }
        parts = {
            "votes": None if drawn.relabelled is None else {"relabelled": _short(drawn.relabelled)},
            "drop": None if drop is None else {"dropped": _short(drop.float().mean())},
            "balance": self.select == "balanced",
            "select": self.select,
        }
        shares = {name: _short(x.mean()) if len(x) else None for name, x in noise.items()}
        return {"parts": parts, "noise": shares}


def _short(value: float | torch.Tensor) -> float:
    return round(float(value), 6)


def shuffled_batches(tasks: torch.Tensor, size: int, seed: Seed) -> tuple[torch.Tensor, ...]:
    """Pool indices [n] in random order, cut into meta-batches; the last may be shorter."""
    order = torch.randperm(len(tasks), generator=generator((*seed, "order")))
    return tuple(tasks[order].split(size))
