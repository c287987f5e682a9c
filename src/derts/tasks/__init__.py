"""Stage 2: few-shot tasks as indices and labels, clean or noisy.

sampling  a Table -> a TaskPool (pool), by seeds (randomness), with label noise (noise)
augment   what an update does to images
A run's own tasks are drawn by training/task_drawer.py, which asks sampling.
"""

from derts.tasks.augment import apply_augmentation, with_augmentation
from derts.tasks.noise import Noise, SwapNoise, TaskNoise
from derts.tasks.pool import TaskPool
from derts.tasks.randomness import generator, numpy_generator
from derts.tasks.sampling import TaskSampler

__all__ = [
    "Noise", "SwapNoise", "TaskNoise", "TaskPool", "TaskSampler", "apply_augmentation",
    "generator", "numpy_generator", "with_augmentation",
]  # fmt: skip
