"""figure2: validation accuracy and training loss over updates, one line per strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from derts.reproduce.job import Job
from derts.reproduce.recipe import Setting, cells
from derts.runs import Run
from derts.statistics import over_seeds

Curve = dict[int, list[float]]
COLORS = {
    "random": "#718096", "us": "#d69e2e", "ats": "#805ad5", "paper": "#2b6cb0", "derts": "#2f855a",
}  # fmt: skip


def draw_curves(jobs: Mapping[tuple[Setting, int], Job], path: Path) -> list[Path]:
    """A row of two panels per group of runs that differ only in strategy; [] without any run."""
    groups: dict[str, dict[str, list[Job]]] = {}
    wanted = {cell.setting for cell in cells("figure2")}
    for (setting, _), job in jobs.items():
        if setting in wanted and (job.folder / "events.jsonl").is_file():
            title = f"{setting.learner}, {100 * setting.noise:.0f}% noise"
            groups.setdefault(title, {}).setdefault(setting.strategy, []).append(job)
    if not groups:
        return []
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6 * len(groups)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(groups), 2, squeeze=False)
    for (title, strategies), (left, right) in zip(groups.items(), panels, strict=True):
        for strategy, runs in strategies.items():
            _draw(left, curve(runs, "validation", "accuracy"), strategy, len(runs))
            _draw(right, curve(runs, "update", "loss"), strategy, len(runs))
        left.set(title=title, xlabel="updates", ylabel="accuracy on validation classes, %")
        right.set(title=title, xlabel="updates", ylabel="training loss (noisy labels)")
        left.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    return [path]


def curve(runs: Sequence[Job], kind: str, key: str) -> Curve:
    """What runs logged of one kind of event: values of all seeds, by update."""
    found: Curve = {}
    for job in runs:
        own = {
            event["update"]: float(event[key])
            for event in Run.open(job.folder).events()
            if event["event"] == kind
        }
        for update, value in own.items():
            found.setdefault(update, []).append(value)
    return dict(sorted(found.items()))


def _draw(axes: Any, values: Curve, strategy: str, seeds: int) -> None:
    """Mean over seeds with its 95% interval, where all seeds have a value."""
    whole = {update: over_seeds(found) for update, found in values.items() if len(found) == seeds}
    updates, means = list(whole), [estimate.mean for estimate in whole.values()]
    color = COLORS[strategy]
    (line,) = axes.plot(updates, means, color=color, linewidth=1.4, label=strategy)
    if len(updates) == 1:
        line.set_marker("o")
    if seeds > 1:
        low = [estimate.mean - estimate.interval for estimate in whole.values()]
        high = [estimate.mean + estimate.interval for estimate in whole.values()]
        axes.fill_between(updates, low, high, color=color, alpha=0.15, linewidth=0)
