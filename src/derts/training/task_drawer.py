"""The tasks that a run trains and is measured on: the same for the same config and arguments."""

from dataclasses import replace

import torch

from derts.config import TaskConfig, TrainConfig
from derts.data import with_rotated_classes
from derts.data.table import Table
from derts.errors import DertsError
from derts.tasks import SwapNoise, TaskNoise, TaskPool, TaskSampler, with_augmentation
from derts.tasks.randomness import Seed

EVALUATION_SEED = 12345  # makes the same test tasks for every run
BLOCK = 32  # updates whose meta-batches are drawn together: many cost little more than one


def training_images(images: Table, tasks: TaskConfig) -> Table:
    """The images that training tasks are of: those of a split, or of its rotated classes."""
    return with_rotated_classes(images, tasks.classes or None) if tasks.rotated else images


def draw_tasks(
    sampler: TaskSampler, tasks: TaskConfig, count: int, seed: Seed, pool_images: int = 0
) -> TaskPool:
    """`count` tasks as a config describes them, with its noise."""
    kinds: dict[str, type[SwapNoise | TaskNoise]] = {"swap": SwapNoise, "tasks": TaskNoise}
    kind = kinds.get(tasks.noise_kind)
    noise = None if kind is None else kind(tasks.noise_level)
    return sampler.draw(
        tasks=count, way=tasks.way, shot=tasks.shot, query=tasks.query, seed=seed, noise=noise,
        pool_images=pool_images,
    )  # fmt: skip


def evaluation_tasks(config: TrainConfig, images: Table) -> TaskPool:
    """The fixed, clean tasks on which runs of a comparison are all measured."""
    count, query = config.evaluation.tasks, config.evaluation.query
    way, shot, seed = config.tasks.way, config.tasks.shot, (EVALUATION_SEED, "evaluation")
    try:
        return TaskPool.sample(images, tasks=count, way=way, shot=shot, query=query, seed=seed)
    except DertsError as error:
        raise DertsError(str(error).replace("--tasks.query", "--evaluation.query")) from None


class TaskDrawer:
    """A run's training tasks, noisy where the config says so."""

    def __init__(self, config: TrainConfig, images: Table) -> None:
        self.config = config
        shape, shift = images.item_shape, config.augment.translation
        if config.augment.active and images.of_features:
            raise DertsError("--augment is for images, and this data is features: leave it out")
        if shift and shift > min(shape[:2]) // 2:
            size = f"images are {shape[1]} pixels wide and {shape[0]} high"
            most = min(shape[:2]) // 2
            raise DertsError(f"--augment.translation is {shift} but {size}: choose at most {most}")
        self._images = images
        # of rotated classes all are allowed: the images are of no others
        self.classes = None if config.tasks.rotated else config.tasks.classes or None
        self.use_labels(None)

    def use_labels(self, labels: torch.Tensor | None, trust: torch.Tensor | None = None) -> None:
        """Draw by other labels [n] than the table's from now on; −1 leaves an item out.

        trust [n]: the probability that each is right (None: all are taken to be).
        """
        self._trust = trust
        self._sampler = TaskSampler(self._images, self.classes, labels)
        self._block: tuple[tuple[int, int], TaskPool] | None = None

    def draw(self, tasks: int, purpose: str, number: int, pool_images: int = 0) -> TaskPool:
        """Fresh training tasks, the same for the same arguments and run seed.

        With `pool_images`, of about that many different ones together. BLOCK meta-batches in a row
        (purpose "batch") are drawn at once and kept until others are asked for.
        """
        if purpose != "batch" or pool_images:
            seed = (self.config.seed, purpose, number)
            return draw_tasks(self._sampler, self.config.tasks, tasks, seed, pool_images)
        block, place = divmod(number, BLOCK)
        kept = self._block  # read once: another thread may draw as well
        if kept is None or kept[0] != (tasks, block):
            seed = (self.config.seed, "batches", block)
            drawn = draw_tasks(self._sampler, self.config.tasks, tasks * BLOCK, seed)
            kept = self._block = (tasks, block), drawn
        return kept[1][place * tasks : (place + 1) * tasks]

    def augmented(self, pool: TaskPool, update: int) -> TaskPool:
        """The tasks of an update, with augmentation where the config asks for it, and trust."""
        if self._trust is not None:
            pool = replace(pool, trust=self._trust[torch.cat((pool.support, pool.query), 1)])
        asked = self.config.augment
        if not asked.active:
            return pool
        seed = (self.config.seed, "augmentation", update)
        return with_augmentation(pool, asked.horizontal_flip, asked.translation, seed)
