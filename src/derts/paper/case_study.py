"""The case study: pictures of tasks that a trained run selects from a pool, and of others.

The pictures show images of the data set and are written into the run folder, nowhere else.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from derts.data import open_data
from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.paper.job import Job
from derts.paper.numbers import class_words
from derts.paper.recipe import Setting, cells
from derts.report.figures import save_figure
from derts.selection.choice import Choice, Seed
from derts.selection.rounds import PoolStrategy
from derts.tasks.pool import TaskPool
from derts.tasks.randomness import generator
from derts.training.checkpoint import newest_checkpoint, say
from derts.training.trainer import Trainer

SHOWN = 3  # tasks of each kind
SIDE = 2  # a class is shown as SIDE × SIDE of its support images
PICTURE = "case-study.png"
FRESH = 10**6  # a round that no run comes to


def draw_case_studies(jobs: Mapping[tuple[Setting, int], Job]) -> list[Path]:
    """A picture in the folder of each finished run of the study; the files there are now."""
    wanted = {cell.setting for cell in cells("case-study")}
    tables: dict[str, dict[str, ImageTable]] = {}
    drawn = []
    for (setting, _), job in jobs.items():
        picture = job.folder / PICTURE
        if setting in wanted and (job.folder / "result.json").is_file():
            data = job.config.data
            if not picture.exists() and (data == "glyphs" or Path(data).exists()):
                if data not in tables:
                    tables[data] = open_data(data)
                draw_case_study(job, tables[data], picture)
            drawn += [picture] if picture.exists() else []
    return drawn


def draw_case_study(job: Job, tables: Mapping[str, ImageTable], path: Path) -> None:
    """Let the trained run choose from a fresh pool; draw tasks of both kinds, taken at random."""
    trainer = Trainer(job.config, tables)
    saved = newest_checkpoint(job.folder / "checkpoints", say)
    if saved is None:
        raise DertsError(f"{job.folder} holds no checkpoint: remove the folder and run it again")
    trainer.load_state_dict(saved[1])
    strategy = trainer.strategy
    assert isinstance(strategy, PoolStrategy)
    where: Seed = (trainer.config.seed, "case-study", 0)
    drawn = strategy.draw(trainer.context, FRESH)
    choice = strategy.choose(trainer.context, drawn, where).settled()
    assert choice.estimate is not None
    pool, estimate = drawn.pool, choice.estimate
    selected, others = sample_of_both(choice, len(pool), where)
    accuracies = estimate.accuracies.cpu()
    tasks = [("selected", task) for task in selected] + [("not selected", task) for task in others]
    notes = [
        f"{kind}\nweight {float(choice.weights[task]):.2f}\n"
        f"{100 * float(accuracies[task]):.0f}% right"
        for kind, task in tasks
    ]
    _draw(trainer.images, pool[[task for _, task in tasks]], notes, path)


def sample_of_both(choice: Choice, size: int, seed: Seed) -> tuple[list[int], list[int]]:
    """Up to SHOWN pool indices that are trained on, and as many that were not selected."""
    unselected = torch.ones(size, dtype=torch.bool)
    unselected[choice.selected] = False
    found = []
    for which in (choice.kept, unselected.nonzero().squeeze(1)):
        order = torch.randperm(len(which), generator=generator((*seed, "shown")))
        found.append(which[order[:SHOWN]].tolist())
    return found[0], found[1]


def _draw(table: ImageTable, tasks: TaskPool, notes: list[str], path: Path) -> None:
    """A row per task, a column per class, the class names above the pictures."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2 * tasks.way + 1.5, 2.2 * len(tasks)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(tasks), tasks.way, squeeze=False)
    for row, note in enumerate(notes):
        for column in range(tasks.way):
            axes: Any = panels[row, column]
            mine = tasks.support[row][tasks.support_labels[row] == column][: SIDE * SIDE]
            name = table.class_names[int(table.labels[mine[0]])]
            name = class_words().get(name, name)
            axes.imshow(_montage(table, mine), cmap="gray", vmin=0, vmax=255)
            # a class may be called $x$; that is no formula
            axes.set_title(name, fontsize=8, parse_math=False)
            axes.set(xticks=[], yticks=[])
        panels[row, 0].set_ylabel(note, rotation=0, ha="right", va="center", fontsize=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # class names in scripts that the font does not have
        save_figure(figure, path, dpi=110)


def _montage(table: ImageTable, indices: torch.Tensor) -> Any:
    """Up to SIDE × SIDE images as one array [height, width(, 3)]; black where there are fewer."""
    height, width, channels = table.image_shape
    side = 1 if len(indices) == 1 else SIDE
    tiles = torch.zeros(side * side, height, width, channels, dtype=torch.uint8)
    tiles[: len(indices)] = table.gather(indices).cpu()
    rows = tiles.reshape(side, side, height, width, channels).permute(0, 2, 1, 3, 4)
    whole = rows.reshape(side * height, side * width, channels)
    return (whole if channels == 3 else whole[..., 0]).numpy()
