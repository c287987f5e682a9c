"""Stage 2: few-shot tasks as indices and labels, clean or noisy."""

from derts.tasks.augment import seen, with_views
from derts.tasks.noise import Noise, SwapNoise, TaskNoise
from derts.tasks.pool import TaskPool
from derts.tasks.randomness import generator
from derts.tasks.sampling import TaskSampler

__all__ = [
    "Noise",
    "SwapNoise",
    "TaskNoise",
    "TaskPool",
    "TaskSampler",
    "generator",
    "seen",
    "with_views",
]
