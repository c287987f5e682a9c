"""Stage 2: few-shot tasks as indices and labels, clean or noisy."""

from derts.tasks.noise import Noise, SwapNoise, TaskNoise
from derts.tasks.pool import TaskPool
from derts.tasks.randomness import generator
from derts.tasks.sampling import TaskSampler
from derts.tasks.views import seen, with_views
from derts.tasks.votes import mend_labels

__all__ = [
    "Noise",
    "SwapNoise",
    "TaskNoise",
    "TaskPool",
    "TaskSampler",
    "generator",
    "mend_labels",
    "seen",
    "with_views",
]
