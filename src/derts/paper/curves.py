"""figure2: validation accuracy and training loss over updates, one line per strategy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from derts.errors import DertsError
from derts.files import write_atomically
from derts.paper.job import Job
from derts.paper.recipe import Setting, cells
from derts.report.figures import save_figure
from derts.statistics import over_seeds
from derts.training.run_folder import Run

COLORS = {
    "random": "#718096", "us": "#d69e2e", "ats": "#805ad5", "paper": "#2b6cb0", "derts": "#2f855a",
}  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """One run: accuracy on validation classes at some updates, and the mean loss up to each."""

    panel: str
    strategy: str
    seed: int
    updates: tuple[int, ...]
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]


def collect_curves(jobs: Mapping[tuple[Setting, int], Job]) -> list[Curve]:
    """What the runs of figure2 have logged so far."""
    wanted = {cell.setting for cell in cells("figure2")}
    found = []
    for (setting, seed), job in jobs.items():
        if setting in wanted and (job.folder / "events.jsonl").is_file():
            panel = f"{setting.learner}, {100 * setting.noise:.0f}% noise"
            found.append(_curve(panel, setting.strategy, seed, Run.open(job.folder)))
    return [curve for curve in found if curve.updates]


def _curve(panel: str, strategy: str, seed: int, run: Run) -> Curve:
    points: list[tuple[int, float, float]] = []
    losses: list[float] = []
    for event in run.events():
        if event["event"] == "update":
            losses += [event["loss"]] if "loss" in event else []  # none: all updates were skipped
        elif event["event"] == "validation" and losses:
            mean = sum(losses) / len(losses)
            points.append((event["update"], round(event["accuracy"], 4), round(mean, 6)))
            losses = []
    updates, accuracy, loss = zip(*points, strict=True) if points else ((), (), ())
    return Curve(panel, strategy, seed, updates, accuracy, loss)


def save_curves(found: Sequence[Curve], path: Path) -> None:
    """Write curves as JSON."""
    lines = ",\n".join(json.dumps(asdict(curve)) for curve in found)
    write_atomically(path, f"[\n{lines}\n]\n".encode())


def load_curves(path: Path) -> list[Curve]:
    """What `save_curves` wrote."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        found = [
            Curve(
                row["panel"],
                row["strategy"],
                row["seed"],
                *(tuple(row[key]) for key in ("updates", "accuracy", "loss")),
            )
            for row in rows
        ]
        if any(curve.strategy not in COLORS for curve in found):
            raise ValueError("an unknown strategy")
        return found
    except FileNotFoundError:
        raise DertsError(f"no curves at {path}: write them with derts reproduce figure2") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DertsError(f"{path} holds no curves ({error}): write it again") from None


def draw_curves(found: Sequence[Curve], path: Path) -> None:
    """Two panels, accuracy and loss, for each group of runs that differ only in strategy."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys(curve.panel for curve in found))
    figure = Figure(figsize=(10, 3.6 * len(groups)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(groups), 2, squeeze=False)
    for title, (left, right) in zip(groups, panels, strict=True):
        for strategy, color in COLORS.items():
            runs = [one for one in found if one.panel == title and one.strategy == strategy]
            if runs:
                _draw(left, runs, "accuracy", color)
                _draw(right, runs, "loss", color)
        left.set(title=title, xlabel="updates", ylabel="accuracy on validation classes, %")
        right.set(title=title, xlabel="updates", ylabel="training loss (labels as trained on)")
        left.legend(frameon=False, fontsize=8)
    save_figure(figure, path, dpi=150)


def _draw(axes: Any, runs: Sequence[Curve], key: str, color: str) -> None:
    """Mean over seeds with its 95% interval, at the updates that all runs have reached."""
    by_update = [dict(zip(run.updates, getattr(run, key), strict=True)) for run in runs]
    updates = [at for at in runs[0].updates if all(at in values for values in by_update)]
    means = [over_seeds([values[at] for values in by_update]) for at in updates]
    middle = [estimate.mean for estimate in means]
    axes.plot(
        updates, middle, color=color, linewidth=1.4, label=runs[0].strategy,
        marker="o" if len(updates) == 1 else None,
    )  # fmt: skip
    if len(runs) > 1:
        low = [estimate.mean - estimate.interval for estimate in means]
        high = [estimate.mean + estimate.interval for estimate in means]
        axes.fill_between(updates, low, high, color=color, alpha=0.15, linewidth=0)
