"""The weights that were best on validation classes, beside those that training goes on with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Best:
    """A model's state after an update, and its accuracy on validation classes then."""

    update: int
    accuracy: float
    weights: Weights

    @staticmethod
    def better(before: Best | None, learner: nn.Module, update: int, accuracy: float) -> Best:
        """`before`, or the learner as it is now where that is more accurate."""
        if before is not None and accuracy <= before.accuracy:
            return before
        return Best(update, accuracy, copied(learner))

    def as_values(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)

    @staticmethod
    def from_values(values: Mapping[str, Any] | None) -> Best | None:
        """What `as_values` gave, or nothing."""
        return None if values is None else Best(**values)

    @contextmanager
    def in_use(self, learner: nn.Module) -> Iterator[None]:
        """Inside of `with` the learner has these weights; afterwards its own again."""
        own = copied(learner)
        learner.load_state_dict(self.weights)
        try:
            yield
        finally:
            learner.load_state_dict(own)


def copied(learner: nn.Module) -> Weights:
    """A learner's state in memory of its own."""
    return {name: value.detach().clone() for name, value in learner.state_dict().items()}


def judged_weights(state: Mapping[str, Any]) -> Weights:
    """Of a checkpoint's state, the weights that its run is judged by."""
    best, last = Best.from_values(state.get("best")), state["learner"]
    weights: Weights = last if best is None else best.weights
    return weights
