"""The tasks that a run trains and is measured on: the same for the same config and arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from derts.config import TaskConfig, TrainConfig
from derts.data.rotated import with_rotated_classes
from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.tasks import Noise, SwapNoise, TaskNoise, TaskPool, TaskSampler
from derts.tasks.augment import with_views

EVALUATION_SEED = 12345
"""Makes the same test tasks for every run."""


def task_noise(tasks: TaskConfig) -> Noise | None:
    """The noise that a task config names."""
    if tasks.noise == "swap":
        return SwapNoise(tasks.swap_rate)
    return TaskNoise(tasks.noisy_fraction) if tasks.noise == "tasks" else None


def training_classes(tasks: TaskConfig) -> tuple[str, ...] | None:
    """The classes that training is restricted to, if any."""
    return tasks.classes or None


def training_images(images: ImageTable, tasks: TaskConfig) -> ImageTable:
    """The images that training tasks are of: those of a split, or of its rotated classes."""
    return with_rotated_classes(images, training_classes(tasks)) if tasks.rotated else images


def training_sampler(images: ImageTable, tasks: TaskConfig) -> TaskSampler:
    """What draws training tasks from `training_images`, of which rotated ones are all allowed."""
    return TaskSampler(images, None if tasks.rotated else training_classes(tasks))


def evaluation_tasks(config: TrainConfig, images: ImageTable, shot: int | None = None) -> TaskPool:
    """The fixed, clean tasks on which runs of a comparison are all measured."""
    settings = config.evaluation
    return TaskPool.sample(
        images,
        tasks=settings.tasks,
        way=config.tasks.way,
        shot=config.tasks.shot if shot is None else shot,
        query=settings.query,
        seed=(EVALUATION_SEED, "evaluation"),
    )


def check_shift(shift: int, images: ImageTable) -> None:
    """Refuse to move images by more than half of their size."""
    most = min(images.image_shape[:2]) // 2
    if shift > most:
        raise DertsError(
            f"--augment.translation is {shift} but images are {images.image_shape[1]} pixels wide "
            f"and {images.image_shape[0]} high: choose at most {most}"
        )


class TaskDrawer:
    """Draws a run's training tasks, noisy where the config says so, and clean validation tasks.

    `validation` gives the validation images, asked for only where they are needed.
    """

    def __init__(
        self, config: TrainConfig, images: ImageTable, validation: Callable[[], ImageTable]
    ) -> None:
        self.config = config
        check_shift(config.augment.translation, images)
        self._sampler = training_sampler(images, config.tasks)
        self._validation = validation
        self._latest: tuple[tuple[int, str, int, int], TaskPool] | None = None

    def draw(self, tasks: int, purpose: str, number: int, images: int = 0) -> TaskPool:
        """Fresh training tasks, the same for the same arguments and run seed.

        With `images`, of about that many different ones together.
        """
        wanted = (tasks, purpose, number, images)
        if self._latest is not None and self._latest[0] == wanted:
            return self._latest[1]
        drawn = self._draw(self._sampler, wanted, task_noise(self.config.tasks))
        if purpose == "batch":  # perhaps to be prefetched, and then soon asked for again
            self._latest = wanted, drawn
        return drawn

    def seen_anew(self, pool: TaskPool, update: int) -> TaskPool:
        """The tasks of an update, with views of their images where the config asks for them."""
        settings = self.config.augment
        if not settings.active:
            return pool
        seed = (self.config.seed, "views", update)
        return with_views(pool, settings.horizontal_flip, settings.translation, seed)

    def draw_validation(self, tasks: int, purpose: str, number: int, images: int = 0) -> TaskPool:
        """Fresh clean tasks of validation classes."""
        return self._draw(self._validation_sampler, (tasks, purpose, number, images), None)

    @cached_property
    def _validation_sampler(self) -> TaskSampler:
        return TaskSampler(self._validation())

    def _draw(
        self, sampler: TaskSampler, wanted: tuple[int, str, int, int], noise: Noise | None
    ) -> TaskPool:
        tasks, purpose, number, images = wanted
        settings = self.config.tasks
        return sampler.draw(
            tasks=tasks,
            way=settings.way,
            shot=settings.shot,
            query=settings.query,
            seed=(self.config.seed, purpose, number),
            noise=noise,
            images=images,
        )
