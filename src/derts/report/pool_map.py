"""The pool as a map, and some of its tasks as rows of pictures: parts of the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import torch
from PIL import Image

from derts.config import TrainConfig
from derts.data import open_data
from derts.data.table import Table
from derts.errors import DertsError
from derts.report.pictures import jpeg_text, to_picture
from derts.report.read import RunGroup
from derts.selection.round_record import RoundRecord, pool_digest
from derts.tasks import TaskPool
from derts.training.task_drawer import TaskDrawer, training_images

TILE = 40  # pixels of a picture on the page
MOST_PICTURES = 3000
MAP_TASKS = 300
WIDTH, HEIGHT, MARGIN = 640, 420, 22
EXAMPLES = 6  # tasks of each state that are shown as rows
STATES = {
    "selected": ("#3f7fd9", "Selected, largest γ first"),
    "not selected": ("#9aa1ab", "Not selected: others stand for them"),
    "dropped": ("#d1495b", "Dropped: they look noisy"),
}
RANDOM = (
    "Nothing in this pool was relabelled or dropped, and few of its tasks repeat each other: "
    "random tasks were trained on until the next look at a pool, none preferred."
)


class Atlas:
    """Different images, each once, as rules of the page's style sheet."""

    def __init__(self) -> None:
        self.rules: list[str] = []
        self._numbers: dict[tuple[int, int], int] = {}

    def show(self, images: Table, index: int, wrong: bool) -> str:
        """An item as an element of the page: its picture, of features the name of its class.

        Nothing where there are too many pictures.
        """
        key, kind = (id(images), index), " wrong" if wrong else ""
        name = escape(images.class_names[int(images.labels[index])])
        if images.of_features:
            return f'<span class="name{kind}">{name}</span>'
        if key not in self._numbers:
            if len(self.rules) == MOST_PICTURES:
                return ""
            self._numbers[key] = len(self.rules)
            picture = to_picture(images.gather(torch.tensor([index]))[0])
            content = jpeg_text(picture.resize((TILE, TILE), Image.Resampling.BICUBIC), 72)
            address = f"data:image/jpeg;base64,{content}"
            self.rules.append(f".p{len(self.rules)} {{ background-image: url({address}); }}\n")
        return f'<span class="picture p{self._numbers[key]}{kind}" title="{name}"></span>'


def tasks_of_round(
    config: TrainConfig, record: RoundRecord, opened: dict[str, Table], data: str | None = None
) -> tuple[Table, TaskPool] | str:
    """The tasks that a round chose from, drawn again; or why they cannot be had.

    `opened` keeps training images by what they are of, so that each is opened once.
    """
    name, tasks = data or config.data, config.tasks
    try:
        key = f"{name}, {tasks.classes} rotated" if tasks.rotated else name
        if key not in opened:
            opened[key] = training_images(open_data(name)["train"], tasks)
        images, drawer = opened[key], TaskDrawer(config, opened[key])
        if record.fits(images):
            if record.labels is not None:
                drawer.use_labels(record.labels)
            size, most = config.strategy.pool, config.strategy.pool_images
            pool = drawer.draw(size, "pool", record.number, most)
            if pool_digest(pool, None if config.model.frozen else images) == record.digest:
                return images, pool
    except (DertsError, KeyError, ValueError) as error:
        return f"the run's data is not at hand ({error})"
    return f"{name} is not the data that this run was trained on"


@dataclass
class PoolView:
    """One group's newest kept round as HTML."""

    group: RunGroup
    record: RoundRecord
    tasks: tuple[Table, TaskPool] | str
    atlas: Atlas

    def __post_init__(self) -> None:
        weights, dropped = self.record.weight.tolist(), self.record.dropped.tolist()
        self.states = [
            "selected" if weight > 0 else "dropped" if drop else "not selected"
            for weight, drop in zip(weights, dropped, strict=True)
        ]
        self.shown = min(MAP_TASKS, len(weights))

    def pictures(self, task: int) -> list[list[str]]:
        """Up to two support items per class of a task, as labelled; none where there is no data."""
        if isinstance(self.tasks, str):
            return []
        images, pool = self.tasks
        given, support = pool.support_labels[task], pool.support[task].tolist()
        wrong = (given != pool.true_support_labels[task]).tolist()
        slots = [(given == label).nonzero().squeeze(1).tolist()[:2] for label in range(pool.way)]
        found = [[self.atlas.show(images, support[at], wrong[at]) for at in one] for one in slots]
        return [shown for one in found if (shown := list(filter(None, one)))]

    def _told(self, task: int, digits: int) -> str:
        """A task's loss, and its γ where it has one."""
        weight, loss = float(self.record.weight[task]), float(self.record.loss[task])
        gamma = f", γ {weight:.2f}" if weight and not self.record.random else ""
        return f"loss {loss:.{digits}f}{gamma}"

    def _tip(self, task: int) -> str:
        """What the page shows of a task while its circle is pointed at."""
        wrong = self.record.mislabelled
        told = f", wrong labels {100 * float(wrong[task]):.0f}%" if wrong.any() else ""
        cards = "".join(f"<span>{''.join(one)}</span>" for one in self.pictures(task))
        return (
            f"<div><strong>task {task}: {self.states[task]}</strong>"
            f'<div>{self._told(task, 3)}{told}</div><div class="cards">{cards}</div></div>'
        )

    def map(self) -> str:
        """The figure: a circle per task, γ as its size."""
        record, whole = self.record, len(self.states)
        circles = []
        # a few far outliers are drawn at the edge
        places = record.place[: self.shown]
        low, high = places.quantile(0.01, 0), places.quantile(0.99, 0)
        unit = ((places - low) / (high - low).clamp(min=1e-9)).clamp(-0.02, 1.02)
        places = MARGIN + unit * torch.tensor([WIDTH - 2.0 * MARGIN, HEIGHT - 2.0 * MARGIN])
        for task, (x, y) in enumerate(places.tolist()):
            radius = 4 + 2.6 * min(float(record.weight[task]), 6.0) ** 0.5
            circles.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" '
                f'fill="{STATES[self.states[task]][0]}"/>'
            )
        tips = "".join(map(self._tip, range(self.shown)))
        key = "".join(
            f'<span><i style="background:{color}"></i>{state}'
            f"{', larger with γ' if state == 'selected' else ''}</span>"
            for state, (color, _) in STATES.items()
            if state in self.states
        )
        caption = f"{self.group.name}, round {record.number + 1} at update {record.update}"
        caption += "" if self.shown == whole else f" ({self.shown} of {whole})"
        caption += ": first two principal components of the estimated gradients."
        caption += f" No pictures: {self.tasks}." if isinstance(self.tasks, str) else ""
        return (
            f'<figure class="map"><figcaption>{escape(caption)}</figcaption>'
            f'<div class="key">{key}</div>'
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="map of the pool">'
            f"{''.join(circles)}</svg>"
            f'<div class="tips" hidden>{tips}</div></figure>'
        )

    def grids(self) -> str:
        """Some tasks of each state as rows of pictures, one per class as labelled."""
        if isinstance(self.tasks, str):
            return ""
        order = self.record.weight.argsort(descending=True, stable=True).tolist()
        columns = []
        for state, (_, title) in STATES.items():
            rows = [
                f'<div class="task"><span class="number">{self._told(task, 2)}</span>'
                f"{''.join(one[0] for one in self.pictures(task))}</div>"
                for task in [task for task in order if self.states[task] == state][:EXAMPLES]
            ]
            if rows:
                title = "Some of the pool" if self.record.random else title
                columns.append(f"<div><h3>{title}</h3>{''.join(rows)}</div>")
        return f'<h3>{escape(self.group.name)}</h3><div class="kinds">{"".join(columns)}</div>'


def pool_views(groups: Sequence[RunGroup], atlas: Atlas, data: str | None) -> list[PoolView]:
    """A view for each group that kept a round: of its first run that did."""
    views: list[PoolView] = []
    opened: dict[str, Table] = {}
    for group in groups:
        for run in group.runs:
            if (record := run.newest_round) is not None:
                tasks = tasks_of_round(run.config, record, opened, data or run.run.found_data())
                views.append(PoolView(group, record, tasks, atlas))
                break
    return views
