"""The contract of a strategy: which tasks the next update trains on, and how much each counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from derts.clock import Clock
from derts.data.table import Table
from derts.distributed import Group
from derts.learners.base import Learner
from derts.tasks.pool import TaskPool

if TYPE_CHECKING:
    from derts.selection.round_record import RoundRecord

State = dict[str, Any]


class Draw(Protocol):
    """Draws tasks for a named purpose, the same for the same arguments; `number` tells the pools of
    one purpose apart, and `pool_images` is about how many different images they have (0: any).
    """

    def __call__(self, tasks: int, purpose: str, number: int, pool_images: int = 0) -> TaskPool: ...


@dataclass(frozen=True)
class MetaBatch:
    """Tasks of one update; `weights` [T], mean 1 by convention (None: all alike)."""

    pool: TaskPool
    weights: torch.Tensor | None = None


@dataclass
class Context:
    """What a strategy may look at. Its decision must be the same in all processes of `group`.

    Validation images and (clean) tasks show classes that other strategies do not see.
    """

    learner: Learner[Any]
    images: Table
    draw: Draw
    meta_batch: int
    seed: int = 0
    update: int = 0  # updates made so far
    clock: Clock = field(default_factory=lambda: Clock(torch.device("cpu")))
    log: Callable[[dict[str, Any]], None] = lambda event: None
    progress: float = 0.0  # updates made so far, as a share of the run
    validation_images: Table | None = None
    draw_validation: Draw | None = None
    keep_round: Callable[[RoundRecord], None] | None = None  # takes what a round decided
    group: Group = field(default_factory=Group)

    def random_batch(self, update: int) -> MetaBatch:
        """What random sampling trains on in an update: uniformly drawn tasks."""
        return MetaBatch(self.draw(self.meta_batch, "batch", update))


class Strategy(ABC):
    """Chooses the meta-batches. Strategies differ here and nowhere else."""

    def check(self, context: Context) -> None:
        """Refuse, before the first update, what cannot work: a DertsError with cause and fix."""

    @abstractmethod
    def next_batch(self, context: Context) -> MetaBatch:
        """The tasks of the next update."""

    def ahead(self, context: Context) -> TaskPool | None:
        """The tasks of the update after this one, where they are known already: for prefetching."""
        return None

    def labels_changed(self) -> None:
        """Training images have other labels from now on: forget what was chosen by the old ones."""

    def weigh(self, batch: MetaBatch, losses: torch.Tensor) -> torch.Tensor | None:
        """Weights [T] for the outer loss, once the tasks' plain losses [T] are known."""
        return batch.weights

    def state_dict(self) -> State:
        """Everything needed to go on as if never interrupted; tensors and plain values."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Continue from what `state_dict` gave."""
