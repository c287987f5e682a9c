"""The updates since the last event: what they gave, and which of them were skipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from derts.tasks.pool import TaskPool
from derts.training.bad_numbers import IN_A_ROW


@dataclass
class Window:
    """One event's worth of updates.

    values   [3] each: mean loss, mean accuracy, gradient norm of an update, where it was computed
    images   how many images they took
    before   the clock's seconds at the beginning
    looked   how many of the values have been looked at for bad numbers
    """

    before: dict[str, float] = field(default_factory=dict)
    values: list[torch.Tensor] = field(default_factory=list)
    images: int = 0
    looked: int = 0

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint between two events."""
        values = torch.stack(self.values).cpu() if self.values else torch.zeros(0, 3)
        return {
            "before": dict(self.before),
            "values": values,
            "images": self.images,
            "looked": self.looked,
        }

    @staticmethod
    def from_state(state: Mapping[str, Any], device: torch.device) -> Window:
        """The window that `state_dict` described."""
        values = list(state["values"].to(device))
        return Window(dict(state["before"]), values, state["images"], state["looked"])

    def look(self) -> list[bool]:
        """Whether each update since the last look was finite; waits for the device."""
        new = self.values[self.looked :]
        self.looked = len(self.values)
        if not new:
            return []
        found: list[bool] = torch.stack(new).isfinite().all(1).tolist()
        return found

    def event(self, seconds: Mapping[str, float]) -> dict[str, Any]:
        """What the record says of these updates; `seconds` is the clock's count at their end.

        Means are those of the finite updates, and missing where there is none.
        """
        spent = {
            name: round(total - self.before.get(name, 0.0), 6) for name, total in seconds.items()
        }
        found: dict[str, Any] = {}
        values = torch.stack(self.values).double().cpu()
        values = values[values.isfinite().all(1)]
        if len(values):
            loss, accuracy, norm = values.mean(0).tolist()
            found["loss"] = round(loss, 6)
            found["accuracy"] = round(100 * accuracy, 4)
            found["gradient_norm"] = round(norm, 6)
        found["seconds"] = {name: value for name, value in spent.items() if value}
        found["images_per_second"] = round(self.images / max(sum(spent.values()), 1e-9), 1)
        return found


class BadStreak:
    """Counts updates that were skipped, and how many of the last ones without a break."""

    def __init__(self) -> None:
        self.skipped = 0
        self.in_a_row = 0
        self._batches: list[tuple[TaskPool, torch.Tensor]] = []

    def remember(self, tasks: TaskPool, losses: torch.Tensor) -> None:
        """Keep an update's tasks and their losses [T] until it has been looked at."""
        self._batches = [*self._batches[1 - IN_A_ROW :], (tasks, losses)]

    def count(self, finite: bool) -> bool:
        """Count one update; whether training must end."""
        self.skipped += not finite
        self.in_a_row = 0 if finite else self.in_a_row + 1
        return self.in_a_row >= IN_A_ROW

    def tasks(self, ago: int) -> TaskPool:
        """The tasks of the update `ago` updates ago whose loss is not finite.

        All of its tasks where only the gradient is not.
        """
        tasks, losses = self._batches[max(-1 - ago, -len(self._batches))]
        bad = (~losses.isfinite()).cpu()
        return tasks[bad] if bool(bad.any()) else tasks
