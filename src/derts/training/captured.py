"""One update as two CUDA graphs: the GPU no longer waits for Python to launch its kernels.

The same kernels on the same numbers as the plain way (`Updater`), recorded once for a fixed number
of tasks and then replayed. Between the two a strategy may weigh the tasks by their losses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from derts.data.streaming import StreamedTable
from derts.data.table import ImageTable
from derts.learners.base import Learner, Outcome, Weigh
from derts.tasks.pool import TaskPool

WARM_UPS = 2


class CapturedUpdate:
    """Forward, and backward with the optimiser's step, for meta-batches of one shape.

    The optimiser must have made a step before, with `capturable` on and its learning rate a
    tensor. Loading another state into model or optimiser calls for a new capture.
    """

    def __init__(
        self,
        learner: Learner[Any],
        images: ImageTable,
        optimiser: torch.optim.Optimizer,
        begin: Callable[[], None],
        finish: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        pool: TaskPool,
    ) -> None:
        """`begin` comes before the forward pass; `finish` gets losses [T] and accuracies [T], makes
        the optimiser's step from the gradients and returns numbers about the update.
        """
        self.pool = pool.to(learner.device).clone()  # every update's tasks are written over it
        self.arrived: Arrived | None = None
        if isinstance(images, StreamedTable):
            self.arrived = Arrived(images, self.pool)
            self.arrived.take(pool)
            images, self.pool = self.arrived.table, self.arrived.pool
        self.weights = torch.ones(len(pool), device=learner.device)
        kept = [buffer.clone() for buffer in learner.buffers()]
        optimiser.zero_grad(set_to_none=True)
        side = torch.cuda.Stream(learner.device)
        side.wait_stream(torch.cuda.current_stream(learner.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                learner.forward_tasks(images, self.pool)[0].mean().backward()
                optimiser.zero_grad(set_to_none=True)
        torch.cuda.current_stream(learner.device).wait_stream(side)
        mode = "thread_local"  # another thread may be drawing tasks into pinned memory meanwhile
        self.forward = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.forward, capture_error_mode=mode):
            begin()
            self.losses, self.plain, self.accuracies = learner.forward_tasks(images, self.pool)
        self.backward = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.backward, pool=self.forward.pool(), capture_error_mode=mode):
            self.loss = (self.losses * self.weights).mean()
            self.loss.backward()
            self.numbers = finish(self.losses.detach(), self.accuracies)
        # nothing keeps the recorded graph of gradients alive: eager backward passes build their own
        self.losses, self.loss = self.losses.detach(), self.loss.detach()
        # held, because the graph writes to them even when the parameters get others
        self.gradients = [value.grad for value in learner.parameters()]
        for buffer, value in zip(learner.buffers(), kept, strict=True):
            buffer.copy_(value)

    def fits(self, pool: TaskPool) -> bool:
        """Whether a meta-batch has the shape that was recorded."""
        return (
            pool.support.shape == self.pool.support.shape
            and pool.query.shape == self.pool.query.shape
            and (pool.augmentation is None) == (self.pool.augmentation is None)
        )

    def run(self, pool: TaskPool, weigh: Weigh) -> tuple[Outcome, torch.Tensor]:
        """The update on the tasks of `pool`; its outcome and what `finish` returned."""
        names = ["support_labels", "query_labels"]
        if self.pool.augmentation is not None:
            names.append("augmentation")
        if self.arrived is None:
            names += ["support", "query"]
        else:
            self.arrived.take(pool)
        for name in names:
            getattr(self.pool, name).copy_(_pinned(getattr(pool, name)), non_blocking=True)
        self.forward.replay()
        weights = weigh(self.plain)
        if weights is None:
            self.weights.fill_(1.0)
        else:
            self.weights.copy_(_pinned(weights), non_blocking=True)
        self.backward.replay()
        outcome = Outcome(self.loss.clone(), self.losses.clone(), self.accuracies.clone())
        return outcome, self.numbers.clone()


def _pinned(values: torch.Tensor) -> torch.Tensor:
    return values.pin_memory() if values.device.type == "cpu" else values


class Arrived:
    """A place on the GPU where streamed images of one meta-batch arrive.

    Recorded kernels read from there: `table` holds the images, `pool`, with the memory of the one
    given, names them by their place.
    """

    def __init__(self, images: StreamedTable, pool: TaskPool) -> None:
        self.images = images
        tasks, support, query = len(pool), pool.support.shape[1], pool.query.shape[1]
        places = torch.arange(tasks * (support + query), device=images.target)
        labels = torch.zeros(len(places), dtype=torch.long)
        shape = len(places), *images.image_shape
        room = torch.zeros(shape, dtype=torch.uint8, device=images.target)
        self.table = ImageTable(room, labels, images.class_names[:1])
        rows = places.reshape(tasks, -1)
        self.pool = replace(pool, support=rows[:, :support], query=rows[:, support:])

    def take(self, pool: TaskPool) -> None:
        """Fetch the images of a meta-batch, or those that were fetched ahead."""
        arriving = self.images.gather(torch.cat((pool.support, pool.query), 1))
        self.table.images.copy_(arriving.flatten(0, 1), non_blocking=True)
