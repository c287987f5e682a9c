"""The pool as a map, and its tasks as rows of pictures: parts of the page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from derts.data.table import ImageTable
from derts.report.figures import DROPPED, LEFT, SELECTED
from derts.report.pictures import COLUMNS, SIDE, Atlas, task_cards, tasks_of_round
from derts.report.read import Group
from derts.selection.round_record import RoundRecord
from derts.tasks import TaskPool

MOST_TASKS = 300
WIDTH, HEIGHT, MARGIN = 640, 420, 22
SHOWN = 6
RAMP = ((0x3B, 0x6F, 0xD4), (0xE9, 0xB0, 0x3A), (0xD1, 0x30, 0x4F))
KINDS = (
    ("selected", "Selected, largest γ first"),
    ("not selected", "Not selected: others stand for them"),
    ("dropped", "Dropped: they look noisy"),
)

RANDOM = (
    "Nothing in this pool was mended or dropped, and few of its tasks repeat each other: so "
    "random tasks were trained on until the next look at a pool, none preferred."
)


@dataclass
class PoolPart:
    """One group's newest kept round: its HTML, and the data that the page's script reads."""

    group: Group
    record: RoundRecord
    tasks: tuple[ImageTable, TaskPool] | str
    atlas: Atlas
    number: int
    script_data: list[dict[str, Any]] = field(default_factory=list)

    def state(self, task: int) -> str:
        """selected, dropped or not selected; in a round of random tasks all are alike."""
        if float(self.record.weight[task]) > 0:
            return "selected"
        return "dropped" if bool(self.record.dropped[task]) else "not selected"

    def cards(self, task: int) -> list[dict[str, object]]:
        """Pictures of a task, none where the data is not at hand."""
        if isinstance(self.tasks, str):
            return []
        return task_cards(*self.tasks, task, self.atlas)

    def map(self) -> str:
        """The figure: a circle per task, γ as its size."""
        record, count = self.record, min(MOST_TASKS, len(self.record.loss))
        places = _scaled(record.place[:count])
        losses = _ranks(record.loss[:count])
        noisy = bool((record.mislabelled > 0).any())
        circles = []
        for task in range(count):
            state, weight = self.state(task), float(record.weight[task])
            wrong, loss = float(record.mislabelled[task]), float(record.loss[task])
            choice = {"selected": SELECTED, "dropped": DROPPED, "not selected": LEFT}[state]
            radius = 4 + 2.6 * min(weight, 6.0) ** 0.5 if weight else 4
            x, y = places[task].tolist()
            circles.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{choice}" '
                f'data-map="{self.number}" data-task="{task}" data-choice="{choice}" '
                f'data-noise="{_ramp(wrong)}" data-loss="{_ramp(float(losses[task]))}"/>'
            )
            gamma = f", γ {weight:.2f}" if weight and not record.random else ""
            known = f", wrong labels {100 * wrong:.0f}%" if noisy else ""
            text = f"loss {loss:.3f}{gamma}{known}"
            self.script_data.append(
                {"number": task, "state": state, "text": text, "cards": self.cards(task)}
            )
        return self._figure("".join(circles), count, noisy)

    def _figure(self, circles: str, count: int, noisy: bool) -> str:
        of = "" if count == len(self.record.loss) else f" ({count} of {len(self.record.loss)})"
        noise = '<option value="noise">wrong labels</option>' if noisy else ""
        blue, red = _ramp(0.0), _ramp(1.0)
        chosen = "none preferred" if self.record.random else "selected, larger with γ"
        where = f" {RANDOM}" if self.record.random else ""
        where += "" if not isinstance(self.tasks, str) else f" No pictures: {_text(self.tasks)}."
        return (
            f'<figure class="map"><figcaption>{_text(self.group.name)}, round '
            f"{self.record.number + 1} at update {self.record.update}{of}: first two principal "
            f"components of the estimated gradients.{where}</figcaption>"
            '<div class="key"><label>colour <select data-colour>'
            f'<option value="choice">choice</option>{noise}<option value="loss">loss</option>'
            '</select></label><span data-key="choice">'
            f'<i style="background:{SELECTED}"></i>{chosen}</span>'
            f'<span data-key="choice"><i style="background:{DROPPED}"></i>dropped</span>'
            f'<span data-key="choice"><i style="background:{LEFT}"></i>not selected</span>'
            f'<span data-key="noise"><i style="background:{blue}"></i>none</span>'
            f'<span data-key="noise"><i style="background:{red}"></i>all wrong</span>'
            f'<span data-key="loss"><i style="background:{blue}"></i>lowest loss</span>'
            f'<span data-key="loss"><i style="background:{red}"></i>highest</span></div>'
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="map of the pool">'
            f"{circles}</svg></figure>"
        )

    def grids(self) -> str:
        """Some tasks of each kind as rows of pictures, one per class as labelled."""
        if isinstance(self.tasks, str):
            return ""
        parts = []
        for kind, title in KINDS:
            tasks = self._examples(kind)
            if tasks:
                title = "Some of the pool" if self.record.random else title
                rows = "".join(self._row(task) for task in tasks)
                parts.append(f"<div><h3>{title}</h3>{rows}</div>")
        return f'<h3>{_text(self.group.name)}</h3><div class="kinds">{"".join(parts)}</div>'

    def _examples(self, kind: str) -> list[int]:
        order: Sequence[int] = range(len(self.record.loss))
        if kind == "selected":
            order = self.record.weight.argsort(descending=True, stable=True).tolist()
        return [task for task in order if self.state(task) == kind][:SHOWN]

    def _row(self, task: int) -> str:
        record = self.record
        weight = float(record.weight[task])
        of_loss = record.random or not weight
        value = f"loss {float(record.loss[task]):.2f}" if of_loss else f"γ {weight:.2f}"
        seen: set[object] = set()
        pictures = []
        for card in self.cards(task):
            if card["label"] in seen:
                continue
            seen.add(card["label"])
            pictures.append(_picture(card))
        return f'<div class="task"><span class="number">{value}</span>{"".join(pictures)}</div>'


def pool_parts(
    groups: Sequence[Group], atlas: Atlas, opened: dict[str, ImageTable], data: str | None
) -> list[PoolPart]:
    """A part for each group that kept a round."""
    parts: list[PoolPart] = []
    for group in groups:
        run, record = group.recorded, group.record
        if run is not None and record is not None:
            tasks = tasks_of_round(run.config, record, opened, data)
            parts.append(PoolPart(group, record, tasks, atlas, len(parts)))
    return parts


def _picture(card: dict[str, Any]) -> str:
    x, y = card["place"] % COLUMNS * SIDE, card["place"] // COLUMNS * SIDE
    wrong = " wrong" if card["wrong"] else ""
    return (
        f'<span class="picture atlas{wrong}" style="background-position:-{x}px -{y}px" '
        f'title="{_text(card["class"])}"></span>'
    )


def _scaled(places: torch.Tensor) -> torch.Tensor:
    """[n, 2] into the drawing; a few far outliers are drawn at its edge."""
    low, high = places.quantile(0.01, 0), places.quantile(0.99, 0)
    unit = ((places - low) / (high - low).clamp(min=1e-9)).clamp(-0.02, 1.02)
    size = torch.tensor([WIDTH - 2.0 * MARGIN, HEIGHT - 2.0 * MARGIN])
    return MARGIN + unit * size


def _ranks(values: torch.Tensor) -> torch.Tensor:
    return values.argsort().argsort().float() / max(1, len(values) - 1)


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


def _text(value: object) -> str:
    return html.escape(str(value))
