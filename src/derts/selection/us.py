"""US: uniform over episode difficulty (Arnold et al., NeurIPS 2021), in its online form."""

import math

import torch
from torch import Tensor

from derts.config import StrategyConfig
from derts.selection.baselines import RandomTasks
from derts.selection.strategy import Context, MetaBatch, State

RANGE = 2.58  # standard deviations that hold 99% of a normal distribution
MOMENTUM = 0.9  # of mean and variance, per episode
UNWEIGHTED = 100  # updates, at least: until mean and variance have settled


class UniformDifficulty(RandomTasks):
    """Random tasks, weighted as if their difficulty had been drawn uniformly.

    A task's difficulty is its loss under the current model, taken to be normally distributed
    with a running mean and variance. Its weight is uniform over normal density. The batch's
    gradient is Σ w g · Σw² / (Σw)²: shorter when few tasks carry the weight.
    """

    def __init__(self, config: StrategyConfig) -> None:
        # the warm-up is the same for all strategies, which may share it
        self.unweighted = max(UNWEIGHTED, config.warmup)
        self.mean: Tensor | None = None
        self.variance: Tensor | None = None
        self.update = 0

    def next_batch(self, context: Context) -> MetaBatch:
        self.update = context.update
        return super().next_batch(context)

    def weigh(self, batch: MetaBatch, losses: Tensor) -> Tensor:
        """Weights [T]; the statistics move on task by task, each weight from before its task."""
        if self.mean is None or self.variance is None:
            self.mean, self.variance = losses[0].clone(), losses.var(correction=0)
        means, self.mean = running_averages(losses, self.mean)
        variances, self.variance = running_averages((losses - means).square(), self.variance)
        if self.update < self.unweighted:
            return torch.ones_like(losses)
        weights = difficulty_weights((losses - means) / variances.sqrt().clamp(min=1e-12))
        return weights * (weights.square().sum() / weights.sum().square() * len(weights))

    def state_dict(self) -> State:
        return {"us_mean": self.mean, "us_variance": self.variance}

    def load_state_dict(self, state: State) -> None:
        if "us_mean" in state:  # another strategy's warm-up has none
            self.mean, self.variance = state["us_mean"], state["us_variance"]


def running_averages(values: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """The exponential average before each of the values [T], and after the last, by one product."""
    count = len(values)
    steps = torch.arange(count + 1, device=values.device)
    age = steps[:, None] - steps[None, :count] - 1  # of value s when value t comes
    decay = MOMENTUM ** age.clamp(min=0).to(values.dtype) * (1 - MOMENTUM)
    averages = (decay * (age >= 0)) @ values + start.to(values) * MOMENTUM ** steps.to(values.dtype)
    return averages[:count], averages[count]


def difficulty_weights(z: Tensor) -> Tensor:
    """Uniform over truncated normal density on ±2.58; 1 outside."""
    inside = math.erf(RANGE / math.sqrt(2))
    normal = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi) / inside
    return torch.where(z.abs() <= RANGE, 1 / (2 * RANGE) / normal, torch.ones_like(z))
