"""The pool as a map, and some of its tasks as rows of pictures: parts of the page."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from derts.data.table import Table
from derts.report.pictures import COLUMNS, TILE, Atlas, TaskPicture, task_pictures, tasks_of_round
from derts.report.read import RunGroup
from derts.selection.round_record import RoundRecord
from derts.tasks import TaskPool

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


@dataclass
class PoolView:
    """One group's newest kept round: its HTML, and the data that the page's script reads."""

    group: RunGroup
    record: RoundRecord
    tasks: tuple[Table, TaskPool] | str
    atlas: Atlas
    number: int

    def __post_init__(self) -> None:
        weights, dropped = self.record.weight.tolist(), self.record.dropped.tolist()
        self.states = [
            "selected" if weight > 0 else "dropped" if drop else "not selected"
            for weight, drop in zip(weights, dropped, strict=True)
        ]
        self.shown = min(MAP_TASKS, len(weights))

    def pictures(self, task: int) -> list[TaskPicture]:
        """Pictures of a task, none where the data is not at hand."""
        return [] if isinstance(self.tasks, str) else task_pictures(*self.tasks, task, self.atlas)

    def _told(self, task: int, digits: int = 3) -> str:
        """A task's loss, its γ where it has one, and its wrong labels where there are such."""
        record = self.record
        weight, wrong = float(record.weight[task]), 100 * float(record.mislabelled[task])
        text = f"loss {float(record.loss[task]):.{digits}f}"
        text += f", γ {weight:.2f}" if weight and not record.random else ""
        return text + (f", wrong labels {wrong:.0f}%" if record.mislabelled.any() else "")

    def script_data(self) -> list[dict[str, Any]]:
        """What the page shows of each task on the map."""
        return [
            {
                "number": task,
                "state": self.states[task],
                "text": self._told(task),
                "cards": [one._asdict() for one in self.pictures(task)],
            }
            for task in range(self.shown)
        ]

    def map(self) -> str:
        """The figure: a circle per task, γ as its size."""
        circles = []
        for task, (x, y) in enumerate(_scaled(self.record.place[: self.shown]).tolist()):
            radius = 4 + 2.6 * min(float(self.record.weight[task]), 6.0) ** 0.5
            circles.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" '
                f'fill="{STATES[self.states[task]][0]}" data-map="{self.number}" '
                f'data-task="{task}"/>'
            )
        names = {"selected": "selected, larger with γ", "dropped": "dropped"}
        names = {state: names.get(state, state) for state in STATES if state in self.states}
        key = "".join(
            f'<span><i style="background:{STATES[state][0]}"></i>{text}</span>'
            for state, text in names.items()
        )
        return (
            f'<figure class="map"><figcaption>{self._caption()}</figcaption>'
            f'<div class="key">{key}</div>'
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
        about += f" No pictures: {self.tasks}." if isinstance(self.tasks, str) else ""
        return html.escape(about)

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
        first = {one.label: one for one in reversed(self.pictures(task))}
        pictures = "".join(_picture(one) for _, one in sorted(first.items()))
        value = self._told(task, 2).partition(", wrong")[0]
        return f'<div class="task"><span class="number">{value}</span>{pictures}</div>'


def _picture(one: TaskPicture) -> str:
    wrong, name = " wrong" if one.wrong else "", html.escape(one.name)
    if one.place is None:
        return f'<span class="name{wrong}">{name}</span>'
    column, row = one.place % COLUMNS, one.place // COLUMNS
    place = f"background-position:-{column * TILE}px -{row * TILE}px"
    return f'<span class="picture atlas{wrong}" title="{name}" style="{place}"></span>'


def pool_views(
    groups: Sequence[RunGroup], atlas: Atlas, opened: dict[str, Table], data: str | None
) -> list[PoolView]:
    """A view for each group that kept a round."""
    views: list[PoolView] = []
    for group in groups:
        if group.newest_round is not None:
            run, record = group.newest_round
            tasks = tasks_of_round(run.config, record, opened, data or run.run.found_data())
            views.append(PoolView(group, record, tasks, atlas, len(views)))
    return views


def _scaled(places: torch.Tensor) -> torch.Tensor:
    """[n, 2] into the drawing; a few far outliers are drawn at its edge."""
    low, high = places.quantile(0.01, 0), places.quantile(0.99, 0)
    unit = ((places - low) / (high - low).clamp(min=1e-9)).clamp(-0.02, 1.02)
    size = torch.tensor([WIDTH - 2.0 * MARGIN, HEIGHT - 2.0 * MARGIN])
    return MARGIN + unit * size
