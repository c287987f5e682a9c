"""The images of a round's tasks, as one sheet of small pictures that a page can point into."""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image

from derts.config import TrainConfig
from derts.data import open_data
from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.selection.round_record import RoundRecord, pool_digest
from derts.tasks import TaskPool
from derts.training.drawing import (
    draw_tasks,
    training_images,
    training_sampler,
)

SIDE = 40  # pixels of a picture on the page
MOST_PICTURES = 3000
COLUMNS = 50


def tasks_of_round(
    config: TrainConfig, record: RoundRecord, opened: dict[str, ImageTable], data: str | None = None
) -> tuple[ImageTable, TaskPool] | str:
    """The tasks that a round chose from, drawn again; or why they cannot be had.

    `opened` keeps training images by what they are of, so that each is opened once.
    """
    name = data or config.data
    try:
        key = f"{name}, {config.tasks.classes} rotated" if config.tasks.rotated else name
        if key not in opened:
            opened[key] = training_images(open_data(name)["train"], config.tasks)
        images = opened[key]
        pool = draw_tasks(
            training_sampler(images, config.tasks),
            config.tasks,
            config.strategy.pool,
            (config.seed, "pool", record.number),
            images=config.strategy.pool_images,
        )
    except (DertsError, KeyError) as error:
        return f"the run's data is not at hand ({error})"
    if pool_digest(pool, images) != record.digest:
        return f"{name} is not the data that this run was trained on"
    return images, pool


@dataclass
class Atlas:
    """Different images, each once, side by side on one sheet."""

    places: dict[tuple[int, int], int] = field(default_factory=dict)
    tiles: list[Image.Image] = field(default_factory=list)

    def add(self, images: ImageTable, index: int) -> int | None:
        """The place of an image on the sheet; None where the sheet is full."""
        key = (id(images), index)
        if key not in self.places:
            if len(self.tiles) >= MOST_PICTURES:
                return None
            self.places[key] = len(self.tiles)
            self.tiles.append(small_picture(images, index, SIDE))
        return self.places[key]

    def data_address(self) -> str:
        """The sheet as a data: address, JPEG where there is colour."""
        rows = max(1, math.ceil(len(self.tiles) / COLUMNS))
        gray = all(tile.mode == "L" for tile in self.tiles)
        sheet = Image.new("L" if gray else "RGB", (COLUMNS * SIDE, rows * SIDE))
        for number, tile in enumerate(self.tiles):
            sheet.paste(tile, (number % COLUMNS * SIDE, number // COLUMNS * SIDE))
        buffer = io.BytesIO()
        sheet.save(buffer, "JPEG", quality=72, optimize=True)
        return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def small_picture(images: ImageTable, index: int, side: int) -> Image.Image:
    """One image of a table [height, width, channels] as a square Pillow image."""
    pixels = images.gather(torch.tensor([index]))[0].cpu().numpy().astype(np.uint8)
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    return picture.resize((side, side), Image.Resampling.BICUBIC)


def task_cards(
    images: ImageTable, pool: TaskPool, task: int, atlas: Atlas
) -> list[dict[str, object]]:
    """One support image per class of a task, as labelled: picture, true class, right or wrong."""
    cards: list[dict[str, object]] = []
    given = pool.support_labels[task]
    wrong = given != pool.true_support_labels[task]
    for label in range(pool.way):
        for slot in (given == label).nonzero().squeeze(1).tolist()[:2]:
            index = int(pool.support[task, slot])
            place = atlas.add(images, index)
            if place is not None:
                name = images.class_names[int(images.labels[index])]
                cards.append(
                    {"label": label, "place": place, "class": name, "wrong": bool(wrong[slot])}
                )
    return cards
