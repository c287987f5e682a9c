"""Losses and gradients that are not finite: the update is skipped, and ten in a row end training.

Whether to skip is decided where the numbers are, so that a GPU is never waited for.
"""

from __future__ import annotations

from typing import Any

import torch

from derts.config import TrainConfig
from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.learners.base import Learner
from derts.learners.embedding import embed_images, evaluation_mode
from derts.tasks.pool import TaskPool

IN_A_ROW = 10
LOOKED_AT = 2048  # images whose features are looked at for the cause


class BadNumbersError(DertsError):
    """Training cannot go on; `tasks` are those of the last bad update."""

    def __init__(self, message: str, tasks: TaskPool) -> None:
        super().__init__(message)
        self.tasks = tasks


class GuardedStep:
    """An optimiser's step that leaves everything as it was when a number is not finite.

    Parameters, the optimiser's averages and the learner's running statistics stay untouched. A
    fused optimiser decides on the device; for others the answer is read, which costs nothing on
    a CPU.
    """

    def __init__(self, learner: Learner[Any], optimiser: torch.optim.Optimizer) -> None:
        self.optimiser = optimiser
        self.buffers = [value for value in learner.buffers() if value.is_floating_point()]
        self.fused = all(group.get("fused") for group in optimiser.param_groups)
        self._kept = torch.zeros(0)

    def keep(self) -> None:
        """Remember the running statistics; call before the forward pass."""
        self._kept = self._joined()

    def step(self, finite: torch.Tensor) -> None:
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

    def _joined(self) -> torch.Tensor:
        parts = [value.flatten() for value in self.buffers]
        return torch.cat(parts) if parts else torch.zeros(0)


def usable_losses(losses: torch.Tensor) -> torch.Tensor:
    """Losses [T] with the mean of the finite ones in place of the others.

    A strategy that keeps averages of losses must not keep a number that never leaves them; the
    update itself is skipped in any case.

    >>> usable_losses(torch.tensor([1.0, float("nan"), 3.0]))
    tensor([1., 2., 3.])
    """
    finite = losses.isfinite()
    mean = torch.where(finite, losses, 0).sum() / finite.sum().clamp(min=1)
    return torch.where(finite, losses, mean)


def bad_numbers(
    config: TrainConfig, learner: Learner[Any], images: ImageTable, update: int, tasks: TaskPool
) -> BadNumbersError:
    """The error that ends training after IN_A_ROW bad updates, with its most likely cause."""
    lr, inner = config.optimiser.lr, config.learner.inner_lr
    if not all(bool(value.isfinite().all()) for value in learner.parameters()):
        cause = "the model's parameters are not finite, start again from an earlier checkpoint"
    elif learner.embeds and not _features_finite(learner, images, tasks):
        cause = f"the images' features are not finite, lower --optimiser.lr (now {lr:g})"
    elif config.learner.name == "protonet":
        cause = f"lower --optimiser.lr (now {lr:g}) or set --optimiser.clip 10"
    else:
        cause = (
            f"lower --learner.inner-lr (now {inner:g}) or --optimiser.lr (now {lr:g}), "
            "or set --optimiser.clip 10"
        )
    return BadNumbersError(
        f"loss or gradient is not finite in {IN_A_ROW} updates in a row, up to update {update}: "
        f"{cause}",
        tasks,
    )


def _features_finite(learner: Learner[Any], images: ImageTable, tasks: TaskPool) -> bool:
    named = torch.cat((tasks.support, tasks.query), 1).unique()[:LOOKED_AT]
    with evaluation_mode(learner):
        return bool(embed_images(learner, images, named).isfinite().all())
