"""One update, and where it runs: forward, weigh, backward and the optimiser's step.

Plain or captured as CUDA graphs, by one process or by several that share a meta-batch.
"""

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from derts.config import HardwareConfig, TrainConfig
from derts.data.streaming import StreamedTable
from derts.data.table import ImageTable, Table
from derts.distributed import Group
from derts.kernels.fast_embedding import FastEmbedding
from derts.learners.base import Learner, Weigh
from derts.models import CNN4
from derts.models.batch_norm import set_total
from derts.models.pieces import set_at_once
from derts.tasks.pool import TaskPool
from derts.training.bad_numbers import GuardedStep

WARM_UPS = 2  # before a capture


def place_learner(learner: Learner[Any], hardware: HardwareConfig, device: torch.device) -> None:
    """Move a learner to a device and let it embed images there in the fastest way asked for."""
    learner.to(device)
    learner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    precision = torch.bfloat16 if hardware.precision == "bfloat16" else torch.float32
    embedding = FastEmbedding(learner.backbone, learner.device, precision)
    embedding.pretrained = learner.embedding.pretrained
    learner.embedding = embedding


class AdamW(torch.optim.AdamW):
    """torch's, without an import that its first call would wait for: torch.compile's machinery.

    Where torch wraps these methods no more, nothing changes.
    """

    add_param_group = inspect.unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.AdamW.zero_grad)
    state_dict = inspect.unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.AdamW.load_state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class Updater:
    """Updates one learner on one table, each in so many pieces that are done one by one."""

    def __init__(
        self,
        learner: Learner[Any],
        images: Table,
        config: TrainConfig,
        group: Group,
        pieces: int = 1,
    ) -> None:
        self.learner, self.images, self.config, self.group = learner, images, config, group
        part, tasks = group.part(config.meta_batch), config.tasks
        mine = part.stop - part.start
        mine *= tasks.way * (tasks.shot + tasks.query) if learner.embeds else 1
        self.at_once = -(-mine // pieces)
        if learner.embeds and pieces > 1:
            set_at_once(learner.backbone.blocks, self.at_once)  # type: ignore[arg-type]
        alone = group.alone and learner.embeds
        # MAML's update on a CNN4 is no less the same every time
        fixed = learner.embeds or isinstance(learner.backbone, CNN4)
        # pieces take long enough without, and memory that a graph keeps is not shared
        self.captures = group.alone and fixed and pieces == 1 and learner.embedding.captures(images)
        held = images.device == learner.device
        if alone and held and not config.augment.active:
            learner.embedding.prepare_patch_products(images)
        self._captured: CapturedUpdate | None = None
        rate = config.optimiser.lr
        assert rate is not None
        self.optimiser = AdamW(
            learner.parameters(),
            # a graph reads its learning rate from memory
            lr=torch.tensor(rate, device=learner.device) if self.captures else rate,
            weight_decay=0.0,
            fused=learner.device.type == "cuda",
            capturable=self.captures,
        )
        self.guard = GuardedStep(learner, self.optimiser)

    def run(self, pool: TaskPool, weigh: Weigh, learning_rate: float) -> tuple[Tensor, Tensor]:
        """Losses [T] of the tasks; mean loss, mean accuracy and gradient norm as a tensor [3]."""
        (group,) = self.optimiser.param_groups
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(learning_rate)
        else:
            group["lr"] = learning_rate
        with self.learner.embedding.fast_math():
            if self.captures and len(pool) == self.config.meta_batch and self.optimiser.state:
                if self._captured is None or not self._captured.fits(pool):
                    self._captured = None  # gives its memory back first
                    self._captured = CapturedUpdate(self, pool)
                return self._captured.run(pool, weigh)
            self.guard.keep()
            self.optimiser.zero_grad(set_to_none=True)
            losses, accuracies = self._gradient(pool, weigh)
            return losses, self.finish(losses, accuracies)

    def _gradient(self, pool: TaskPool, weigh: Weigh) -> tuple[Tensor, Tensor]:
        """Fill the parameters' gradients; losses [T] and accuracies [T] of all tasks."""
        learner, group, count = self.learner, self.group, len(pool)
        if group.alone:
            return self._backward(pool, weigh)
        part, share = group.part(count), group.share(count)
        if learner.embeds:
            # where every process has all tasks, each has all their statistics too
            set_total(learner.backbone, group.total if group.shares(count) else None)

        def weigh_mine(mine: Tensor) -> Tensor:
            weights = weigh(group.gather(mine, count))
            return share * (torch.ones_like(mine) if weights is None else weights[part].to(mine))

        losses, accuracies = self._backward(pool[part], weigh_mine)
        group.sum_tensors([x.grad for x in learner.parameters() if x.grad is not None])
        return group.gather(losses, count), group.gather(accuracies, count)

    def _backward(self, pool: TaskPool, weigh: Weigh) -> tuple[Tensor, Tensor]:
        """Add the gradients of the tasks' weighted mean loss to the parameters'."""
        learner, images = self.learner, self.images
        if learner.embeds or len(pool) <= self.at_once:
            outcome = learner.outer_loss(images, pool, weigh)
            outcome.loss.backward()
            return outcome.losses, outcome.accuracies
        # weights may follow from all losses, so these come first, without a graph
        pieces = list(pool.split(self.at_once))
        with torch.no_grad():
            found = [learner.forward_tasks(images, piece)[1:] for piece in pieces]
        losses, accuracies = (torch.cat(each) for each in zip(*found, strict=True))
        weights = weigh(losses)
        weights = torch.ones_like(losses) if weights is None else weights.to(losses)
        for piece, some in zip(pieces, weights.split(self.at_once), strict=True):
            learner.outer_loss(images, piece, some * (len(piece) / len(pool))).loss.backward()
        return losses, accuracies

    def finish(self, losses: Tensor, accuracies: Tensor) -> Tensor:
        """Step; mean loss, mean accuracy and gradient norm, as [3]."""
        gradients = [x.grad for x in self.learner.parameters() if x.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        values = torch.stack((losses.mean(), accuracies.mean(), norm))
        self.guard.step(values.isfinite().all())
        return values

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from an optimiser's state, after the learner has been given its own."""
        self._captured = None  # it knows the old optimiser's memory
        # how the optimiser works is this device's affair, not that of the one that wrote the state:
        # a graph would keep a learning rate that came from a file, on the CPU, for ever
        (group,) = self.optimiser.param_groups
        own = {name: group[name] for name in ("lr", "fused", "capturable")}
        self.optimiser.load_state_dict(state)
        self.optimiser.param_groups[0].update(own)


class CapturedUpdate:
    """An updater's work on meta-batches of one shape, as two CUDA graphs that are replayed.

    Between the graphs a strategy may weigh the tasks by their losses. The optimiser must have made
    a step before. Loading another state into model or optimiser calls for a new capture.
    """

    def __init__(self, updater: Updater, pool: TaskPool) -> None:
        learner, images, optimiser = updater.learner, updater.images, updater.optimiser
        self.streamed = StreamedBatch(images, pool) if isinstance(images, StreamedTable) else None
        if self.streamed is not None:
            images, pool = self.streamed.table, self.streamed.take(pool)
        self.pool = pool.to(learner.device).clone()  # every update's tasks are written over it
        self.weights = torch.ones(len(pool), device=learner.device)
        kept = [buffer.clone() for buffer in learner.buffers()]
        optimiser.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()  # what was held before the capture is held beside it
        side = torch.cuda.Stream(learner.device)
        side.wait_stream(torch.cuda.current_stream(learner.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                learner.forward_tasks(images, self.pool)[0].mean().backward()
                optimiser.zero_grad(set_to_none=True)
        torch.cuda.current_stream(learner.device).wait_stream(side)
        torch.cuda.empty_cache()
        mode = "thread_local"  # another thread may be drawing tasks into pinned memory meanwhile
        self.forward = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.forward, capture_error_mode=mode):
            updater.guard.keep()
            self.losses, self.plain, self.accuracies = learner.forward_tasks(images, self.pool)
        self.backward = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.backward, pool=self.forward.pool(), capture_error_mode=mode):
            (self.losses * self.weights).mean().backward()
            self.numbers = updater.finish(self.losses.detach(), self.accuracies)
        # nothing keeps the captured graph of gradients alive: eager backward passes build their own
        self.losses = self.losses.detach()
        # held, because the graph writes to them even when the parameters get others
        self.gradients = [value.grad for value in learner.parameters()]
        for buffer, value in zip(learner.buffers(), kept, strict=True):
            buffer.copy_(value)

    def fits(self, pool: TaskPool) -> bool:
        return (
            pool.support.shape == self.pool.support.shape
            and pool.query.shape == self.pool.query.shape
            and pool.tensors().keys() == self.pool.tensors().keys()
        )

    def run(self, pool: TaskPool, weigh: Weigh) -> tuple[Tensor, Tensor]:
        if self.streamed is not None:
            pool = self.streamed.take(pool)
        names = "support", "query", "support_labels", "query_labels", "augmentation", "trust"
        for name in names:
            if (given := getattr(pool, name)) is not None:
                getattr(self.pool, name).copy_(_pinned(given), non_blocking=True)
        self.forward.replay()
        weights = weigh(self.plain)
        if weights is None:
            self.weights.fill_(1.0)
        else:
            self.weights.copy_(_pinned(weights), non_blocking=True)
        self.backward.replay()
        return self.losses.clone(), self.numbers.clone()


def _pinned(values: Tensor) -> Tensor:
    return values.pin_memory() if values.device.type == "cpu" else values


class StreamedBatch:
    """Where streamed images of meta-batches arrive on the GPU, in `table`."""

    def __init__(self, images: StreamedTable, pool: TaskPool) -> None:
        self.images = images
        tasks, support, query = len(pool), pool.support.shape[1], pool.query.shape[1]
        places = torch.arange(tasks * (support + query), device=images.target)
        labels = torch.zeros(len(places), dtype=torch.long)
        shape = len(places), *images.item_shape
        room = torch.zeros(shape, dtype=torch.uint8, device=images.target)
        self.table = ImageTable(room, labels, images.class_names[:1])
        self.support, self.query = places.reshape(tasks, -1).tensor_split([support], 1)

    def take(self, pool: TaskPool) -> TaskPool:
        """Fetch a meta-batch's images, unless they were ahead; it, naming them by their place."""
        arriving = self.images.gather(torch.cat((pool.support, pool.query), 1))
        self.table.images.copy_(arriving.flatten(0, 1), non_blocking=True)
        return replace(pool, support=self.support, query=self.query)
