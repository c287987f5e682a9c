"""US: weights, order of the statistics' update, scaling of the gradient."""

import math

import pytest
import torch

from derts.config import StrategyConfig
from derts.selection.strategy import MetaBatch
from derts.selection.us import UniformDifficulty, difficulty_weights
from derts.tasks import TaskPool, generator


def empty_pool(tasks: int) -> TaskPool:
    nothing = torch.zeros(tasks, 1, dtype=torch.long)
    return TaskPool(nothing, nothing, nothing, nothing, nothing, nothing, way=2)


@pytest.mark.parametrize(
    ("z", "weight"), [(0.0, 0.481), (1.0, 0.793), (-1.0, 0.793), (2.0, 3.55), (2.58, 13.4)]
)
def test_the_weight_has_the_papers_values(z: float, weight: float) -> None:
    assert float(difficulty_weights(torch.tensor([z]))) == pytest.approx(weight, rel=3e-3)


def test_outside_the_range_the_weight_is_one() -> None:
    assert difficulty_weights(torch.tensor([-2.59, 2.59, 40.0])).tolist() == [1.0, 1.0, 1.0]


def test_statistics_move_task_by_task_as_a_plain_loop_says() -> None:
    strategy = UniformDifficulty(StrategyConfig("us", warmup=0))
    strategy.update = 100
    batch = MetaBatch(empty_pool(6))
    mean = variance = 0.0
    for number in range(4):
        losses = torch.rand(6, generator=generator(number), dtype=torch.float64) + 0.5
        if number == 0:
            mean, variance = float(losses[0]), float(losses.var(correction=0))
        expected = []
        for loss in losses.tolist():
            z = (loss - mean) / math.sqrt(variance)
            density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi) / math.erf(2.58 / math.sqrt(2))
            expected.append(1 / 5.16 / density if abs(z) <= 2.58 else 1.0)
            variance = 0.9 * variance + 0.1 * (loss - mean) ** 2
            mean = 0.9 * mean + 0.1 * loss
        weights = torch.tensor(expected, dtype=torch.float64)
        found = strategy.weigh(batch, losses)
        # the mean of weight × loss is Σ w · Σw² / (Σw)² × loss
        scaled = weights * weights.square().sum() / weights.sum().square() * 6
        torch.testing.assert_close(found, scaled)
        assert strategy.mean is not None
        assert float(strategy.mean) == pytest.approx(mean)


@pytest.mark.parametrize(("warmup", "unweighted"), [(0, 100), (5, 100), (250, 250)])
def test_the_first_updates_are_not_weighted(warmup: int, unweighted: int) -> None:
    strategy = UniformDifficulty(StrategyConfig("us", warmup=warmup))
    batch = MetaBatch(empty_pool(3))
    strategy.update = unweighted - 1
    assert strategy.weigh(batch, torch.tensor([1.0, 2.0, 3.0])).tolist() == [1.0, 1.0, 1.0]
    strategy.update = unweighted
    assert strategy.weigh(batch, torch.tensor([1.0, 2.0, 3.0])).tolist() != [1.0, 1.0, 1.0]
