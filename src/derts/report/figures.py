"""The report's figures, each drawn once: as SVG for the page, as PNG for print."""

import html
import io
import itertools
import math
import re
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from derts.clock import SELECTION_PHASES, TRAINING_PHASES
from derts.files import write_atomically
from derts.report.read import RunGroup

# readable on white and on black
COLORS = ("#7f8794", "#3f7fd9", "#d9822b", "#2f9e6e", "#c2477f", "#8a63d2", "#a08a1c")
PHASE_COLORS = {
    "update": "#3f7fd9", "tasks": "#7fb2ee", "pool": "#f0c36d", "embedding": "#d9822b",
    "estimating": "#c2477f", "selecting": "#8a63d2", "labels": "#2f9e6e",
}  # fmt: skip
Colors = Sequence[tuple[RunGroup, str]]
LEGEND_LETTERS, BAR_LETTERS = 64, 24  # in a line
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 8, "loc": "outside lower center"}
SMALL = (5.2, 3.3)  # inches
CURVES = (
    ("validation", "accuracy", "Accuracy on validation tasks", "validation-accuracy"),
    ("update", "accuracy", "Accuracy on the training tasks as labelled", "accuracy"),
    ("update", "loss", "Training loss", "loss"),
)


def as_svg(name: str, figure: Any) -> str:
    """A figure as an inline SVG element whose ink follows the page's text colour."""
    import matplotlib as mpl

    # a fixed salt and no date: the same report twice is the same file
    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": name}
    about = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context(settings):
        text = _rendered(figure, "svg", transparent=True, metadata=about).decode()
    # identifiers must differ between the figures of one page
    text = re.sub(r'id="|href="#|url\(#', lambda found: f"{found[0]}{name}-", text)
    text = text[text.index("<svg") + 4 :].replace("#000000", "currentColor")
    return f'<svg role="img" aria-label="{html.escape(figure.get_label())}"{text}'


def new_figure(size: tuple[float, float], layout: str | None = "constrained") -> Any:
    """A matplotlib figure of a size in inches that needs no screen and no global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout=layout)  # type: ignore[arg-type]


def save_figure(figure: Any, path: Path, **settings: Any) -> None:
    """Write a figure in the format of the file's name, whole or not at all."""
    write_atomically(path, _rendered(figure, path.suffix[1:], **settings))


def _rendered(figure: Any, kind: str, **settings: Any) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # letters that the font lacks become boxes: nothing to say
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing")
        figure.savefig(buffer, format=kind, **settings)
    return buffer.getvalue()


def draw_band(
    axes: Any, places: Any, means: Any, band: tuple[Any, Any] | None, label: str, color: str
) -> None:
    """A line, and a band from low to high around it where there is one."""
    dot = "o" if len(places) == 1 else None  # one point makes no line
    axes.plot(places, means, color=color, linewidth=1.6, marker=dot, label=label)
    if band is not None:
        axes.fill_between(places, *band, color=color, alpha=0.17, linewidth=0)


def plain(text: str) -> str:
    """Text in which matplotlib sees no formula."""
    return text.replace("$", r"\$")


def shorten(text: str, most: int) -> str:
    """The text, its middle left out where it is long.

    >>> shorten("a-very-long-name-of-a-file.png", 12)
    'a-very…e.png'
    """
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}…{text[len(text) - (most - most // 2 - 1) :]}"


def draw_figures(groups: Sequence[RunGroup]) -> dict[str, Any]:
    """All figures that these runs have something to show in, by name, with captions as labels."""
    figures: dict[str, Any] = {}

    def add(name: str, caption: str, size: tuple[float, float] = SMALL) -> Any:
        figures[name] = new_figure(size)
        figures[name].set_label(caption)
        axes = figures[name].subplots()
        axes.spines[["top", "right"]].set_visible(False)
        return axes

    kept = COLORS if groups[0].config.strategy.name == "random" else COLORS[1:]  # random is grey
    colors = list(zip(groups, itertools.cycle(kept), strict=False))
    runs = [run for group in groups for run in group.runs]
    for event, key, what, name in CURVES:
        if any(run.named(event) for run in runs):
            for against, unit in (("update", "updates"), ("seconds", "seconds")):
                axes = add(f"{name}-{unit}", f"{what}, against {unit}")
                _draw_curves(axes, colors, event, key, against)
    chose = any(name in run.phases() for name in SELECTION_PHASES for run in runs)
    if chose or len(groups) > 1:  # else it is one bar of one colour
        lines = sum(_label(group, BAR_LETTERS).count("\n") + 1 for group in groups)
        size = (SMALL[0], max(2.2, 1.5 + 0.25 * lines + 0.2 * len(groups)))
        _draw_phases(add("time", "Milliseconds per update, over the whole run", size), groups)
    if any(event["noise"]["pool"] for run in runs for event in run.named("round")):
        axes = add("noise", "Wrong labels in the pool, dropped and kept")
        _draw_noise(axes, colors)
    return figures


def _label(group: RunGroup, letters: int = LEGEND_LETTERS) -> str:
    """A group's whole name, in lines where it has many settings."""
    return plain("\n".join(textwrap.wrap(group.name, letters)))


def _finish(axes: Any, across: str, up: str) -> None:
    """Names of the axes; the legend is below the drawing, which keeps its height."""
    axes.set(xlabel=across, ylabel=up)
    axes.grid(alpha=0.2)
    names = axes.get_legend_handles_labels()[1]
    lines = [line for name in names for line in name.split("\n")]
    columns = 2 if max(map(len, lines), default=0) <= LEGEND_LETTERS // 2 else 1
    width, height = axes.figure.get_size_inches()
    axes.figure.set_size_inches(width, height + 0.17 * math.ceil(len(lines) / columns))
    axes.figure.legend(ncols=columns, **LEGEND)


def _draw_curves(axes: Any, colors: Colors, event: str, key: str, against: str) -> None:
    for group, color in colors:
        curves = [curve for run in group.runs if (curve := run.curve(event, key, against))]
        if curves:
            length = min(map(len, curves))
            points = np.array([curve[:length] for curve in curves])  # [runs, length, 2]
            places, values = points[..., 0].mean(0), points[..., 1]
            band = (values.min(0), values.max(0)) if len(values) > 1 else None
            draw_band(axes, places, values.mean(0), band, _label(group), color)
    if key == "accuracy":
        label: str | None = "chance: a class is guessed"
        for chance in sorted({100 / group.config.tasks.way for group, _ in colors}):
            axes.axhline(chance, color="#888888", linewidth=1, linestyle=":", label=label)
            label = None
    across = "updates" if against == "update" else "seconds of training"
    _finish(axes, across, "accuracy, %" if key == "accuracy" else key)


def _draw_phases(axes: Any, groups: Sequence[RunGroup]) -> None:
    rows = np.arange(len(groups))
    left = np.zeros(len(groups))
    spent = [[run.phases() for run in group.runs] for group in groups]
    for phase in TRAINING_PHASES:
        widths = np.array([np.mean([run.get(phase, 0.0) for run in runs]) for runs in spent])
        if widths.max() > 0.002 * max(1e-9, left.max() + widths.max()):
            axes.barh(rows, widths, left=left, color=PHASE_COLORS[phase], label=phase)
        left += widths
    axes.set_yticks(rows, [_label(group, BAR_LETTERS) for group in groups], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("ms per update, evaluation apart")
    axes.figure.legend(ncols=3, **LEGEND)


def _draw_noise(axes: Any, colors: Colors) -> None:
    for group, color in colors:
        if group.config.tasks.noise == "none":
            continue  # nobody knows which labels are wrong
        rounds = next(filter(None, (run.named("round") for run in group.runs)), [])
        for key, style in {"pool": ":", "dropped": "--", "kept": "-"}.items():
            known = [event for event in rounds if event["noise"][key] is not None]
            if known:
                places = [event["round"] + 1 for event in known]
                values = [100 * event["noise"][key] for event in known]
                label = f"{_label(group)}: {key}"
                axes.plot(places, values, f"{style}o", markersize=3, color=color, label=label)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(bottom=0)
    _finish(axes, "round", "wrong labels, %")
