"""The updates since the last event, and those of them that were skipped for bad numbers.

Ten skipped in a row end training. Whether to skip is decided where the numbers are, so that a GPU
is never waited for.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from derts.clock import spent_since
from derts.config import TrainConfig
from derts.errors import DertsError
from derts.learners.base import Learner
from derts.tasks.pool import TaskPool
from derts.training.run_folder import Event, Listen

IN_A_ROW = 10
Seconds = Mapping[str, float]


class BadNumbersError(DertsError):
    """Training cannot go on after IN_A_ROW bad updates; `tasks` are the bad ones of the last."""

    def __init__(self, config: TrainConfig, update: int, tasks: TaskPool) -> None:
        self.tasks = tasks
        adapts = config.learner.name != "protonet"
        inner = f"--learner.inner-lr (now {config.learner.inner_lr:g}) or " if adapts else ""
        fix = f"lower {inner}--optimiser.lr (now {config.optimiser.lr:g})"
        cause = f"loss or gradient is not finite in {IN_A_ROW} updates in a row"
        super().__init__(f"{cause}, up to update {update}: {fix}")


class GuardedStep:
    """An optimiser's step that leaves all, running statistics too, as it was where numbers are bad.

    A fused optimiser decides on the device; for others the answer is read.
    """

    def __init__(self, learner: Learner[Any], optimiser: torch.optim.Optimizer) -> None:
        self.optimiser = optimiser
        self.buffers = [value for value in learner.buffers() if value.is_floating_point()]
        self.fused = all(group.get("fused") for group in optimiser.param_groups)
        self._kept = torch.zeros(0)

    def keep(self) -> None:
        """Remember the running statistics; call before the forward pass."""
        self._kept = self._joined()

    def step(self, finite: Tensor) -> None:
        """Step where `finite` (bool, scalar) is true, else put the statistics back."""
        if self.fused:
            # what torch's own gradient scaler sets: the fused kernel then does nothing
            setattr(self.optimiser, "found_inf", (~finite).float())  # noqa: B010
            self.optimiser.step()
        elif bool(finite):
            self.optimiser.step()
            return
        if self.buffers:
            good = torch.where(finite, self._joined(), self._kept)
            parts = good.split([value.numel() for value in self.buffers])
            shaped = [part.view_as(value) for part, value in zip(parts, self.buffers, strict=True)]
            torch._foreach_copy_(self.buffers, shaped)

    def _joined(self) -> Tensor:
        parts = [value.flatten() for value in self.buffers]
        return torch.cat(parts) if parts else torch.zeros(0)


class UpdateWindow:
    """One event's worth of updates, and the count of all that were skipped.

    values   [3] each: mean loss, mean accuracy, gradient norm of an update, where it was computed
    """

    def __init__(self) -> None:
        self.skipped = self.in_a_row = 0
        self._batches: list[tuple[TaskPool, Tensor]] = []
        self.begin({})

    def begin(self, seconds: Seconds) -> None:
        """Forget the updates of the last event; the clock stands at `seconds`."""
        self.before, self.images = dict(seconds), 0
        self.values: list[Tensor] = []

    def remember(self, tasks: TaskPool, losses: Tensor) -> None:
        """Keep an update's tasks and their losses [T] until it has been looked at."""
        self._batches = [*self._batches[1 - IN_A_ROW :], (tasks, losses)]
        self.images += len(tasks) * (tasks.support.shape[1] + tasks.query.shape[1])

    def look(self, config: TrainConfig, update: int, now: Seconds, log: Listen) -> Event:
        """What the log says of the finite updates up to `now`; each of the others is logged apart.

        An error after IN_A_ROW of these. Waits for a GPU.
        """
        values = torch.stack(self.values).double().cpu()
        finite = values.isfinite().all(1)
        for number, good in enumerate(finite.tolist(), update - len(values) + 1):
            self.in_a_row = 0 if good else self.in_a_row + 1
            if not good:
                self.skipped += 1
                log({"event": "skipped", "update": number, "cause": "not finite"})
            if self.in_a_row >= IN_A_ROW:
                tasks, losses = self._batches[max(number - update - 1, -len(self._batches))]
                bad = (~losses.isfinite()).cpu()
                raise BadNumbersError(config, number, tasks[bad] if bool(bad.any()) else tasks)
        found, spent = {}, spent_since(self.before, now)
        if bool(finite.any()):
            loss, accuracy, norm = values[finite].mean(0).tolist()
            found = {"loss": round(loss, 6), "accuracy": round(100 * accuracy, 4)}
            found["gradient_norm"] = round(norm, 6)
        speed = round(self.images / max(sum(spent.values()), 1e-9), 1)
        return {**found, "seconds": spent, "images_per_second": speed}

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint between two events."""
        values = torch.stack(self.values).cpu() if self.values else torch.zeros(0, 3)
        window = {"before": dict(self.before), "values": values, "images": self.images}
        return {"window": window, "skipped": self.skipped, "skipped_in_a_row": self.in_a_row}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        window = state["window"]
        self.begin(window["before"])
        self.values, self.images = list(window["values"].to(device)), window["images"]
        self.skipped, self.in_a_row = state["skipped"], state["skipped_in_a_row"]


def usable_losses(losses: Tensor) -> Tensor:
    """Losses [T] with the mean of the finite ones in place of those that averages would keep.

    >>> usable_losses(torch.tensor([1.0, float("nan"), 3.0]))
    tensor([1., 2., 3.])
    """
    finite = losses.isfinite()
    mean = torch.where(finite, losses, 0).sum() / finite.sum().clamp(min=1)
    return torch.where(finite, losses, mean)
