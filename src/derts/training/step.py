"""One update: gradient, clipping and the optimiser's step, plain or recorded as CUDA graphs."""

from __future__ import annotations

import math
from typing import Any

import torch

from derts.config import OptimiserConfig
from derts.data.table import ImageTable
from derts.distributed import Group
from derts.kernels.common_operations import FusedCommon
from derts.kernels.patch_sums import PatchSums
from derts.learners.base import Learner, Outcome, Weigh
from derts.tasks.pool import TaskPool
from derts.training.bad_numbers import GuardedStep
from derts.training.captured import CapturedUpdate
from derts.training.shared import outer_gradient


class Updater:
    """Updates one learner on one table; `meta_batch` is the number of tasks that is usual."""

    def __init__(
        self,
        learner: Learner[Any],
        images: ImageTable,
        config: OptimiserConfig,
        meta_batch: int,
        group: Group,
        augmented: bool = False,
    ) -> None:
        self.learner, self.images, self.config = learner, images, config
        self.meta_batch, self.group = meta_batch, group
        self.captures = group.alone and learner.captures_on(images)
        self.held = images.device == learner.device
        known = group.alone and self.held and not augmented and learner.takes_products(images)
        if known and PatchSums.worthwhile(images):
            learner.patch_sums = PatchSums(images, FusedCommon())
        self._captured: CapturedUpdate | None = None
        assert config.lr is not None
        self.optimiser = torch.optim.AdamW(
            learner.parameters(),
            # a graph reads its learning rate from memory
            lr=torch.tensor(config.lr, device=learner.device) if self.captures else config.lr,
            weight_decay=0.0,
            fused=learner.device.type == "cuda",
            capturable=self.captures,
        )
        self.guard = GuardedStep(learner, self.optimiser)

    def run(
        self, pool: TaskPool, weigh: Weigh, learning_rate: float
    ) -> tuple[Outcome, torch.Tensor]:
        """Outcome of the update; its mean loss, mean accuracy and gradient norm as a tensor [3].

        Where one of them is not finite, everything is left as it was.
        """
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(learning_rate)
            else:
                group["lr"] = learning_rate
        # a bank wants the numbers of images, which streamed ones do not have in a recording
        captures = self.captures and (self.held or self.learner.bank is None)
        if captures and len(pool) == self.meta_batch and self.optimiser.state:
            if self._captured is None:
                self._captured = CapturedUpdate(
                    self.learner, self.images, self.optimiser, self.guard.keep, self._finish, pool
                )
            if self._captured.fits(pool):
                return self._captured.run(pool, weigh)
        self.guard.keep()
        self.optimiser.zero_grad(set_to_none=True)
        outcome = outer_gradient(self.learner, self.images, pool, weigh, self.group)
        return outcome, self._finish(outcome.losses, outcome.accuracies)

    def _finish(self, losses: torch.Tensor, accuracies: torch.Tensor) -> torch.Tensor:
        limit = self.config.clip or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.learner.parameters(), limit)
        values = torch.stack((losses.mean(), accuracies.mean(), norm.detach()))
        self.guard.step(values.isfinite().all())
        return values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from an optimiser's state, after the learner has been given its own."""
        self._captured = None  # it knows the old optimiser's memory
        # how the optimiser works is this device's affair, not that of the one that wrote the state:
        # a graph would keep a learning rate that came from a file, on the CPU, for ever
        own = [
            {name: group[name] for name in ("lr", "fused", "capturable")}
            for group in self.optimiser.param_groups
        ]
        self.optimiser.load_state_dict(state)
        for group, settings in zip(self.optimiser.param_groups, own, strict=True):
            group.update(settings)
