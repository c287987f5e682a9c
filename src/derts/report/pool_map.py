"""The pool as a map, and its tasks as rows of pictures: parts of the page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from derts.data.table import ImageTable
from derts.report.figures import DROPPED, LEFT, SELECTED
from derts.report.pictures import COLUMNS, TILE, Atlas, TaskPicture, task_pictures, tasks_of_round
from derts.report.read import RunGroup
from derts.selection.round_record import RoundRecord
from derts.tasks import TaskPool

MAP_TASKS = 300
WIDTH, HEIGHT, MARGIN = 640, 420, 22
EXAMPLES = 6  # tasks of each state that are shown as rows
RAMP = ((0x3B, 0x6F, 0xD4), (0xE9, 0xB0, 0x3A), (0xD1, 0x30, 0x4F))
STATES = {
    "selected": (SELECTED, "Selected, largest γ first"),
    "not selected": (LEFT, "Not selected: others stand for them"),
    "dropped": (DROPPED, "Dropped: they look noisy"),
}
RANDOM = (
    "Nothing in this pool was relabelled or dropped, and few of its tasks repeat each other: "
    "random tasks were trained on until the next look at a pool, none preferred."
)


@dataclass
class PoolView:
    """One group's newest kept round: its HTML, and the data that the page's script reads."""

    group: RunGroup
    record: RoundRecord
    tasks: tuple[ImageTable, TaskPool] | str
    atlas: Atlas
    number: int

    def __post_init__(self) -> None:
        weights, dropped = self.record.weight.tolist(), self.record.dropped.tolist()
        self.states = [
            "selected" if weight > 0 else "dropped" if drop else "not selected"
            for weight, drop in zip(weights, dropped, strict=True)
        ]
        self.noisy = bool((self.record.mislabelled > 0).any())
        self.shown = min(MAP_TASKS, len(weights))

    def pictures(self, task: int) -> list[TaskPicture]:
        """Pictures of a task, none where the data is not at hand."""
        return [] if isinstance(self.tasks, str) else task_pictures(*self.tasks, task, self.atlas)

    def script_data(self) -> list[dict[str, Any]]:
        """What the page shows of each task on the map."""
        found: list[dict[str, Any]] = []
        for task in range(self.shown):
            weight = float(self.record.weight[task])
            text = f"loss {float(self.record.loss[task]):.3f}"
            text += f", γ {weight:.2f}" if weight and not self.record.random else ""
            if self.noisy:
                text += f", wrong labels {100 * float(self.record.mislabelled[task]):.0f}%"
            cards = [
                {"label": one.label, "place": one.place, "class": one.class_name,
                 "wrong": one.wrong}
                for one in self.pictures(task)
            ]  # fmt: skip
            state = self.states[task]
            found.append({"number": task, "state": state, "text": text, "cards": cards})
        return found

    def map(self) -> str:
        """The figure: a circle per task, γ as its size."""
        record, count = self.record, self.shown
        places = _scaled(record.place[:count]).tolist()
        losses = record.loss[:count].argsort().argsort().float() / max(1, count - 1)
        circles = []
        for task, (x, y) in enumerate(places):
            color = STATES[self.states[task]][0]
            radius = 4 + 2.6 * min(float(record.weight[task]), 6.0) ** 0.5
            circles.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{color}" '
                f'data-map="{self.number}" data-task="{task}" data-choice="{color}" '
                f'data-noise="{_ramp(float(record.mislabelled[task]))}" '
                f'data-loss="{_ramp(float(losses[task]))}"/>'
            )
        return (
            f'<figure class="map"><figcaption>{self._caption()}</figcaption>{self._key()}'
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="map of the pool">'
            f"{''.join(circles)}</svg></figure>"
        )

    def _caption(self) -> str:
        count, whole = self.shown, len(self.states)
        of = "" if count == whole else f" ({count} of {whole})"
        about = (
            f"{self.group.name}, round {self.record.number + 1} at update {self.record.update}{of}:"
            " first two principal components of the estimated gradients."
        )
        about += f" {RANDOM}" if self.record.random else ""
        about += f" No pictures: {self.tasks}." if isinstance(self.tasks, str) else ""
        return html.escape(about)

    def _key(self) -> str:
        chosen = "none preferred" if self.record.random else "selected, larger with γ"
        low, high = _ramp(0.0), _ramp(1.0)
        keys = (
            ("choice", SELECTED, chosen), ("choice", DROPPED, "dropped"),
            ("choice", LEFT, "not selected"), ("noise", low, "none"), ("noise", high, "all wrong"),
            ("loss", low, "lowest loss"), ("loss", high, "highest"),
        )  # fmt: skip
        noise = '<option value="noise">wrong labels</option>' if self.noisy else ""
        spans = "".join(
            f'<span data-key="{kind}"><i style="background:{color}"></i>{text}</span>'
            for kind, color, text in keys
        )
        return (
            '<div class="key"><label>colour <select data-colour>'
            f'<option value="choice">choice</option>{noise}<option value="loss">loss</option>'
            f"</select></label>{spans}</div>"
        )

    def grids(self) -> str:
        """Some tasks of each state as rows of pictures, one per class as labelled."""
        if isinstance(self.tasks, str):
            return ""
        order = self.record.weight.argsort(descending=True, stable=True).tolist()
        columns = []
        for state, (_, title) in STATES.items():
            tasks = [task for task in order if self.states[task] == state][:EXAMPLES]
            if tasks:
                title = "Some of the pool" if self.record.random else title
                columns.append(f"<div><h3>{title}</h3>{''.join(map(self._row, tasks))}</div>")
        name = html.escape(self.group.name)
        return f'<h3>{name}</h3><div class="kinds">{"".join(columns)}</div>'

    def _row(self, task: int) -> str:
        weight = float(self.record.weight[task])
        of_loss = self.record.random or not weight
        value = f"loss {float(self.record.loss[task]):.2f}" if of_loss else f"γ {weight:.2f}"
        first = {one.label: one for one in reversed(self.pictures(task))}
        pictures = "".join(_picture(first[label]) for label in sorted(first))
        return f'<div class="task"><span class="number">{value}</span>{pictures}</div>'


def pool_views(
    groups: Sequence[RunGroup], atlas: Atlas, opened: dict[str, ImageTable], data: str | None
) -> list[PoolView]:
    """A view for each group that kept a round."""
    views: list[PoolView] = []
    for group in groups:
        if group.newest_round is not None:
            run, record = group.newest_round
            tasks = tasks_of_round(run.config, record, opened, data)
            views.append(PoolView(group, record, tasks, atlas, len(views)))
    return views


def _picture(one: TaskPicture) -> str:
    x, y = one.place % COLUMNS * TILE, one.place // COLUMNS * TILE
    return (
        f'<span class="picture atlas{" wrong" if one.wrong else ""}" '
        f'style="background-position:-{x}px -{y}px" title="{html.escape(one.class_name)}"></span>'
    )


def _scaled(places: torch.Tensor) -> torch.Tensor:
    """[n, 2] into the drawing; a few far outliers are drawn at its edge."""
    low, high = places.quantile(0.01, 0), places.quantile(0.99, 0)
    unit = ((places - low) / (high - low).clamp(min=1e-9)).clamp(-0.02, 1.02)
    size = torch.tensor([WIDTH - 2.0 * MARGIN, HEIGHT - 2.0 * MARGIN])
    return MARGIN + unit * size


def _ramp(share: float) -> str:
    """0 … 1 as a colour from blue over yellow to red.

    >>> _ramp(0.0), _ramp(1.0)
    ('#3b6fd4', '#d1304f')
    """
    place = 2 * min(1.0, max(0.0, share))
    low, high = (RAMP[0], RAMP[1]) if place <= 1 else (RAMP[1], RAMP[2])
    part = place if place <= 1 else place - 1
    mixed = [round(a + part * (b - a)) for a, b in zip(low, high, strict=True)]
    return "#" + "".join(f"{value:02x}" for value in mixed)
