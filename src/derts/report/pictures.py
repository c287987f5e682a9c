"""Small pictures: of a round's tasks, on one sheet that a page points into; and with captions."""

import base64
import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image

from derts.config import TrainConfig
from derts.data import open_data
from derts.data.table import Table
from derts.errors import DertsError, printable
from derts.report.figures import new_figure, plain, save_figure, shorten
from derts.selection.round_record import RoundRecord, pool_digest
from derts.tasks import TaskPool
from derts.training.drawing import draw_tasks, training_images, training_sampler

TILE = 40  # pixels of a picture on the page
COLUMNS = 50
MOST_PICTURES = 3000
SHEET_LINE = 0.13  # inches of a line under a picture, which has one
SHEET_LETTERS = 17  # of a line, so that it ends before the next picture's
SHEET_LINES = 4  # of one line of a caption, at most
SHEET_PICTURES = 100


class TaskPicture(NamedTuple):
    """A support item: its label in the task, place in the atlas (features have none), true class,
    right or wrong.
    """

    label: int
    place: int | None
    name: str
    wrong: bool


@dataclass
class Atlas:
    """Different images, each once, side by side on one sheet."""

    places: dict[tuple[int, int], int] = field(default_factory=dict)
    tiles: list[Image.Image] = field(default_factory=list)

    def add(self, images: Table, index: int) -> int | None:
        """The place of an image on the sheet; None where the sheet is full."""
        key = (id(images), index)
        if key not in self.places:
            if len(self.tiles) >= MOST_PICTURES:
                return None
            self.places[key] = len(self.tiles)
            picture = to_picture(images.gather(torch.tensor([index]))[0])
            self.tiles.append(picture.resize((TILE, TILE), Image.Resampling.BICUBIC))
        return self.places[key]

    def data_address(self) -> str:
        """The sheet as a data: address."""
        rows = max(1, math.ceil(len(self.tiles) / COLUMNS))
        gray = all(tile.mode == "L" for tile in self.tiles)
        sheet = Image.new("L" if gray else "RGB", (COLUMNS * TILE, rows * TILE))
        for number, tile in enumerate(self.tiles):
            sheet.paste(tile, (number % COLUMNS * TILE, number // COLUMNS * TILE))
        buffer = io.BytesIO()
        sheet.save(buffer, "JPEG", quality=72, optimize=True)
        return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def to_picture(pixels: torch.Tensor) -> Image.Image:
    """uint8 [height, width, 1 or 3] as a Pillow image."""
    values = pixels.cpu().numpy()
    return Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values)


def tasks_of_round(
    config: TrainConfig, record: RoundRecord, opened: dict[str, Table], data: str | None = None
) -> tuple[Table, TaskPool] | str:
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


def task_pictures(images: Table, pool: TaskPool, task: int, atlas: Atlas) -> list[TaskPicture]:
    """Up to two support items per class of a task, as labelled."""
    found = []
    given = pool.support_labels[task]
    wrong = given != pool.true_support_labels[task]
    for label in range(pool.way):
        for slot in (given == label).nonzero().squeeze(1).tolist()[:2]:
            index = int(pool.support[task, slot])
            place = atlas.add(images, index) if images.noun == "image" else None
            if place is not None or images.noun == "row":
                name = images.class_names[int(images.labels[index])]
                found.append(TaskPicture(label, place, name, bool(wrong[slot])))
    return found


def _wrapped(line: str) -> str:
    """A line of a caption whole, on as many as it needs; of a very long one the ends."""
    line = shorten(printable(line), SHEET_LINES * SHEET_LETTERS - SHEET_LETTERS // 2)
    return "\n".join(textwrap.wrap(line, SHEET_LETTERS)) or line


def draw_sheet(
    pictures: Sequence[Image.Image], captions: Sequence[str], path: Path, title: str
) -> None:
    """Write pictures in rows of ten as a PNG, with a few lines under each; at most a hundred."""
    texts = ["\n".join(map(_wrapped, caption.split("\n"))) for caption in captions]
    shown = list(zip(pictures, texts, strict=True))[:SHEET_PICTURES]
    columns = max(4, min(10, len(shown)))
    rows = max(1, math.ceil(len(shown) / columns))
    below = SHEET_LINE * max((caption.count("\n") + 1 for _, caption in shown), default=1)
    high = 0.4 + rows * (1 + below)
    figure = new_figure((1.04 * columns, high), layout=None)
    place = {"left": 0.01, "right": 0.99, "wspace": 0.08}
    place |= {"bottom": below / high, "top": 1 - 0.35 / high, "hspace": below}
    panels = figure.subplots(rows, columns, squeeze=False, gridspec_kw=place)
    for number, axes in enumerate(panels.flat):
        axes.set_axis_off()
        if number < len(shown):
            picture, caption = shown[number]
            axes.imshow(picture.convert("RGB"), aspect="auto")
            axes.text(0, -0.03, plain(caption), fontsize=6.5, va="top", transform=axes.transAxes)
    figure.suptitle(plain(title), fontsize=9, x=0.01, y=1 - 0.12 / high, ha="left")
    save_figure(figure, path, dpi=150)
