"""One update, and where it runs: forward, weigh, backward, clip and the optimiser's step.

Plain or recorded as CUDA graphs, by one process or by several that share a meta-batch.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from derts.config import HardwareConfig, TrainConfig
from derts.data.streaming import StreamedTable
from derts.data.table import ImageTable
from derts.distributed import Group
from derts.kernels.fast_embedding import FastEmbedding
from derts.learners.base import Learner, Outcome, Weigh
from derts.models.batch_norm import set_total
from derts.tasks.pool import TaskPool
from derts.training.bad_numbers import GuardedStep
from derts.training.captured import CapturedUpdate


def place_learner(learner: Learner[Any], config: TrainConfig, device: torch.device) -> None:
    """Move a learner to a device and let it embed images there in the fastest way asked for."""
    hardware = config.hardware
    learner.to(device)
    learner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    precision = torch.bfloat16 if hardware.precision == "bfloat16" else torch.float32
    embedding = FastEmbedding(learner.backbone, learner.device, precision)
    if hardware.compile and learner.embeds and not embedding.by_kernels:
        embedding.compile_for(config.meta_batch, learner.dtype)
    learner.embedding = embedding


def place_table(
    images: ImageTable, device: torch.device, hardware: HardwareConfig | None = None
) -> ImageTable:
    """Images on a GPU where they fit into the memory for them, else streamed to the device.

    The memory is what the config says, or half of what is free.
    """
    if images.device.type == "cuda":
        return images
    limit = (hardware.image_memory_gib if hardware else 0.0) * 2**30
    if device.type == "cuda":
        limit = limit or torch.cuda.mem_get_info(device)[0] // 2
        if images.images.nbytes < limit:
            return images.to(device)
    elif not limit or images.images.nbytes < limit:
        return images
    return StreamedTable.of(images, device)


class Updater:
    """Updates one learner on one table."""

    def __init__(
        self, learner: Learner[Any], images: ImageTable, config: TrainConfig, group: Group
    ) -> None:
        self.learner, self.images, self.config, self.group = learner, images, config, group
        alone = group.alone and learner.embeds
        self.captures = alone and learner.embedding.captures(images)
        held = images.device == learner.device
        if alone and held and not config.augment.active and not learner.per_task_statistics:
            learner.embedding.know(images)
        self._captured: CapturedUpdate | None = None
        rate = config.optimiser.lr
        assert rate is not None
        self.optimiser = torch.optim.AdamW(
            learner.parameters(),
            # a graph reads its learning rate from memory
            lr=torch.tensor(rate, device=learner.device) if self.captures else rate,
            weight_decay=0.0,
            fused=learner.device.type == "cuda",
            capturable=self.captures,
        )
        self.guard = GuardedStep(learner, self.optimiser)

    def run(
        self, pool: TaskPool, weigh: Weigh, learning_rate: float
    ) -> tuple[Outcome, torch.Tensor]:
        """Outcome of the update; its mean loss, mean accuracy and gradient norm as a tensor [3].

        `weigh` gets the losses [T] of all tasks. Where a number is not finite, everything is left
        as it was.
        """
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(learning_rate)
            else:
                group["lr"] = learning_rate
        with self.learner.embedding.fast_math():
            if self.captures and len(pool) == self.config.meta_batch and self.optimiser.state:
                if self._captured is None:
                    parts = self.learner, self.images, self.optimiser
                    self._captured = CapturedUpdate(*parts, self.guard.keep, self._finish, pool)
                if self._captured.fits(pool):
                    return self._captured.run(pool, weigh)
            self.guard.keep()
            self.optimiser.zero_grad(set_to_none=True)
            outcome = self._gradient(pool, weigh)
            return outcome, self._finish(outcome.losses, outcome.accuracies)

    def _gradient(self, pool: TaskPool, weigh: Weigh) -> Outcome:
        """Fill the parameters' gradients; `loss` is this process's part of the meta-batch's."""
        learner, group, count = self.learner, self.group, len(pool)
        if group.alone:
            outcome = learner.outer_loss(self.images, pool, weigh)
            outcome.loss.backward()
            return outcome
        part, share = group.part(count), group.share(count)
        if learner.embeds and not learner.per_task_statistics:
            # where every process has all tasks, each has all their statistics too
            set_total(learner.backbone, group.total if group.shares(count) else None)

        def weigh_mine(mine: torch.Tensor) -> torch.Tensor:
            weights = weigh(group.gather(mine, count))
            return share * (torch.ones_like(mine) if weights is None else weights[part].to(mine))

        outcome = learner.outer_loss(self.images, pool[part], weigh_mine)
        outcome.loss.backward()
        group.sum_gradients(learner.parameters())
        if learner.per_task_statistics:
            # running statistics move by the mean over tasks: that of where each process put them
            buffers = [value for value in learner.buffers() if value.is_floating_point()]
            for value in buffers:
                value.mul_(share)
            group.sum_tensors(buffers)
        losses = group.gather(outcome.losses, count)
        return Outcome(outcome.loss.detach(), losses, group.gather(outcome.accuracies, count))

    def _finish(self, losses: torch.Tensor, accuracies: torch.Tensor) -> torch.Tensor:
        limit = self.config.optimiser.clip or math.inf
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
