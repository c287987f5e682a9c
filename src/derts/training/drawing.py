"""The tasks that a run trains and is measured on: the same for the same config and arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from derts.config import TaskConfig, TrainConfig
from derts.data import with_rotated_classes
from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.tasks import Noise, SwapNoise, TaskNoise, TaskPool, TaskSampler, with_augmentation
from derts.tasks.randomness import Seed

EVALUATION_SEED = 12345
"""Makes the same test tasks for every run."""
BLOCK = 32
"""Updates whose meta-batches are drawn together: many cost little more than one."""


def task_noise(tasks: TaskConfig) -> Noise | None:
    """The noise that a task config names."""
    if tasks.noise == "swap":
        return SwapNoise(tasks.swap_rate)
    return TaskNoise(tasks.noisy_fraction) if tasks.noise == "tasks" else None


def training_images(images: ImageTable, tasks: TaskConfig) -> ImageTable:
    """The images that training tasks are of: those of a split, or of its rotated classes."""
    return with_rotated_classes(images, tasks.classes or None) if tasks.rotated else images


def draw_tasks(
    sampler: TaskSampler, tasks: TaskConfig, count: int, seed: Seed, images: int = 0
) -> TaskPool:
    """`count` tasks as a config describes them, with its noise."""
    return sampler.draw(
        tasks=count, way=tasks.way, shot=tasks.shot, query=tasks.query, seed=seed,
        noise=task_noise(tasks), images=images,
    )  # fmt: skip


def training_sampler(images: ImageTable, tasks: TaskConfig) -> TaskSampler:
    """What draws tasks from `training_images`, of whose rotated classes all are allowed."""
    return TaskSampler(images, None if tasks.rotated else tasks.classes or None)


def evaluation_tasks(config: TrainConfig, images: ImageTable, shot: int | None = None) -> TaskPool:
    """The fixed, clean tasks on which runs of a comparison are all measured."""
    settings, shot = config.evaluation, config.tasks.shot if shot is None else shot
    return TaskPool.sample(
        images, tasks=settings.tasks, way=config.tasks.way, shot=shot, query=settings.query,
        seed=(EVALUATION_SEED, "evaluation"),
    )  # fmt: skip


class TaskDrawer:
    """Draws a run's training tasks, noisy where the config says so, and clean validation tasks.

    `validation` gives the validation images, asked for only where they are needed.
    """

    def __init__(
        self, config: TrainConfig, images: ImageTable, validation: Callable[[], ImageTable]
    ) -> None:
        self.config = config
        height, width = images.image_shape[:2]
        if config.augment.translation > min(height, width) // 2:
            raise DertsError(
                f"--augment.translation is {config.augment.translation} but images are {width} "
                f"pixels wide and {height} high: choose at most {min(height, width) // 2}"
            )
        self._sampler = training_sampler(images, config.tasks)
        self._clean = replace(config.tasks, noise="none")
        self._validation = validation
        self._block: tuple[tuple[int, int], TaskPool] | None = None

    def draw(self, tasks: int, purpose: str, number: int, images: int = 0) -> TaskPool:
        """Fresh training tasks, the same for the same arguments and run seed.

        With `images`, of about that many different ones together. Meta-batches (purpose "batch")
        of some consecutive numbers are drawn at once and kept until others are asked for.
        """
        if purpose != "batch" or images:
            seed = (self.config.seed, purpose, number)
            return draw_tasks(self._sampler, self.config.tasks, tasks, seed, images)
        block, place = divmod(number, BLOCK)
        kept = self._block  # read once: another thread may draw as well
        if kept is None or kept[0] != (tasks, block):
            seed = (self.config.seed, "batches", block)
            drawn = draw_tasks(self._sampler, self.config.tasks, tasks * BLOCK, seed)
            kept = self._block = (tasks, block), drawn
        return kept[1][place * tasks : (place + 1) * tasks]

    def draw_validation(self, tasks: int, purpose: str, number: int, images: int = 0) -> TaskPool:
        """Fresh clean tasks of validation classes."""
        seed = (self.config.seed, purpose, number)
        return draw_tasks(self._validation_sampler, self._clean, tasks, seed, images)

    @cached_property
    def _validation_sampler(self) -> TaskSampler:
        return TaskSampler(self._validation())

    def augmented(self, pool: TaskPool, update: int) -> TaskPool:
        """The tasks of an update, with augmentation where the config asks for it."""
        settings = self.config.augment
        if not settings.active:
            return pool
        seed = (self.config.seed, "augmentation", update)
        return with_augmentation(pool, settings.horizontal_flip, settings.translation, seed)
