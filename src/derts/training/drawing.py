"""The tasks that a run trains and is measured on: the same for the same config and arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from derts.config import TaskConfig, TrainConfig
from derts.data.rotated import with_rotated_classes
from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.tasks import Noise, SwapNoise, TaskNoise, TaskPool, TaskSampler, with_augmentation

BLOCK = 16  # updates whose meta-batches are drawn together: many cost little more than one


def task_noise(tasks: TaskConfig) -> Noise | None:
    """The noise that a task config names."""
    if tasks.noise == "swap":
        return SwapNoise(tasks.swap_rate, tasks.swap_limit)
    return TaskNoise(tasks.noisy_fraction, tasks.flip) if tasks.noise == "tasks" else None


def training_classes(tasks: TaskConfig) -> tuple[str, ...] | None:
    """The classes that training is restricted to, if any."""
    if tasks.class_budget:
        from derts.paper.numbers import class_list

        return class_list(tasks.class_budget)
    return tasks.classes or None


def training_images(images: ImageTable, tasks: TaskConfig) -> ImageTable:
    """The images that training tasks are of: those of a split, or of its rotated classes."""
    return with_rotated_classes(images, training_classes(tasks)) if tasks.turned else images


def training_sampler(images: ImageTable, tasks: TaskConfig) -> TaskSampler:
    """What draws training tasks from `training_images`, of whose rotated classes all count."""
    return TaskSampler(images, None if tasks.turned else training_classes(tasks))


def evaluation_tasks(config: TrainConfig, images: ImageTable, shot: int | None = None) -> TaskPool:
    """The fixed, clean tasks on which runs of a comparison are all measured."""
    settings = config.evaluation
    return TaskPool.sample(
        images,
        tasks=settings.tasks,
        way=config.tasks.way,
        shot=config.tasks.shot if shot is None else shot,
        query=settings.query,
        seed=(settings.seed, "evaluation"),
    )


class TaskDrawer:
    """Draws a run's training tasks, noisy where the config says so, and clean validation tasks.

    `validation` gives the validation images, asked for only where they are needed.
    """

    def __init__(
        self, config: TrainConfig, images: ImageTable, validation: Callable[[], ImageTable]
    ) -> None:
        self.config = config
        most = min(images.image_shape[:2]) // 2
        if config.augment.shift > most:
            raise DertsError(
                f"--augment.shift is {config.augment.shift} but images are "
                f"{images.image_shape[1]} pixels wide and {images.image_shape[0]} high: "
                f"choose at most {most}"
            )
        self._sampler = training_sampler(images, config.tasks)
        self._validation = validation
        self._block: tuple[tuple[int, int], TaskPool] | None = None

    def draw(self, tasks: int, purpose: str, number: int, images: int = 0) -> TaskPool:
        """Fresh training tasks, the same for the same arguments and run seed.

        With `images`, of about that many different ones together. Meta-batches (purpose "batch")
        of some consecutive numbers are drawn at once and kept until those of others are asked for.
        """
        noise = task_noise(self.config.tasks)
        if purpose != "batch" or images:
            return self._draw(self._sampler, tasks, (purpose, number), images, noise)
        block, place = divmod(number, BLOCK)
        kept = self._block
        if kept is None or kept[0] != (tasks, block):
            drawn = self._draw(self._sampler, tasks * BLOCK, (purpose, "block", block), 0, noise)
            kept = self._block = (tasks, block), drawn
        return kept[1][place * tasks : (place + 1) * tasks]

    def draw_validation(self, tasks: int, purpose: str, number: int, images: int = 0) -> TaskPool:
        """Fresh clean tasks of validation classes."""
        return self._draw(self._validation_sampler, tasks, (purpose, number), images, None)

    def augmented(self, pool: TaskPool, update: int) -> TaskPool:
        """The tasks of an update, with augmentation where the config asks for it."""
        settings = self.config.augment
        if not settings.active:
            return pool
        seed = (self.config.seed, "augmentation", update)
        return with_augmentation(pool, settings.mirror, settings.shift, seed)

    @cached_property
    def _validation_sampler(self) -> TaskSampler:
        return TaskSampler(self._validation())

    def _draw(
        self,
        sampler: TaskSampler,
        tasks: int,
        path: tuple[int | str, ...],
        images: int,
        noise: Noise | None,
    ) -> TaskPool:
        settings = self.config.tasks
        return sampler.draw(
            tasks=tasks,
            way=settings.way,
            shot=settings.shot,
            query=settings.query,
            seed=(self.config.seed, *path),
            noise=noise,
            images=images,
        )
