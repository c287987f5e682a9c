"""What a decision of ATS depends on, and the decision recorded as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from derts.hardware import send
from derts.learners.embedding import Named
from derts.selection.strategy import MetaBatch
from derts.tasks.pool import TaskPool


class DrawnTasks(NamedTuple):
    """Candidates, and clean tasks for the reward, each with their `named_images`."""

    candidates: TaskPool
    named: Named
    rewarding: TaskPool
    rewarding_named: Named


class DecisionInputs(NamedTuple):
    """All that an update's decision depends on beside learner and scheduler.

    noise [2, T]: random numbers for trying and for choosing; step int64 [1], temperature [1].
    """

    drawn: DrawnTasks
    noise: torch.Tensor
    step: torch.Tensor
    temperature: torch.Tensor

    def tensors(self) -> list[torch.Tensor]:
        """All of them, in one order."""
        drawn = self.drawn
        pools = [*drawn.candidates.tensors().values(), *drawn.rewarding.tensors().values()]
        return [*pools, *drawn.named, *drawn.rewarding_named, *self[1:]]

    def on(self, device: torch.device) -> DecisionInputs:
        """The same on a device, fetched in the background, in memory of its own."""
        first, named, second, others = self.drawn

        def there(pair: Named) -> Named:
            return send(pair[0], device).clone(), send(pair[1], device).clone()

        drawn = DrawnTasks(
            first.to(device).clone(), there(named), second.to(device).clone(), there(others)
        )
        return DecisionInputs(drawn, *(send(value, device).clone() for value in self[1:]))


class RecordedDecision:
    """A decision as a CUDA graph: nothing of it waits for Python any more.

    Record it after a plain one, which plans and compiles what is used.
    """

    def __init__(
        self,
        decide: Callable[[DecisionInputs], torch.Tensor],
        inputs: DecisionInputs,
        device: torch.device,
    ) -> None:
        self.inputs = inputs.on(device)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.chosen = decide(self.inputs)

    def fits(self, inputs: DecisionInputs) -> bool:
        """Whether all shapes are those that were recorded."""
        pairs = zip(self.inputs.tensors(), inputs.tensors(), strict=True)
        return all(mine.shape == other.shape for mine, other in pairs)

    def __call__(self, inputs: DecisionInputs) -> MetaBatch:
        """Decide, and give what was chosen."""
        for mine, other in zip(self.inputs.tensors(), inputs.tensors(), strict=True):
            mine.copy_(other, non_blocking=True)
        self.graph.replay()
        return MetaBatch(self.inputs.drawn.candidates[self.chosen])
