"""Pictures of runs: figure2's training curves, and the case study's tasks.

The case study shows images of the data set and is written into the run folders, nowhere else.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from derts.data import open_data
from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.files import write_atomically
from derts.paper.cells import cells, class_words
from derts.paper.runs import GridRun, Runs
from derts.report.figures import save_figure
from derts.selection.rounds import PoolStrategy
from derts.statistics import over_seeds
from derts.tasks.pool import TaskPool
from derts.tasks.randomness import generator
from derts.training.run import open_trainer
from derts.training.run_folder import Run

DRAWN = ("figure2", "case-study")
"""Names of which there are pictures, made from run folders."""
COLORS = {
    "random": "#718096", "random-votes": "#c05621", "us": "#d69e2e", "ats": "#805ad5",
    "paper": "#2b6cb0", "derts": "#2f855a",
}  # fmt: skip
SHOWN = 3  # tasks of each kind
SIDE = 2  # a class is shown as SIDE × SIDE of its support images
PICTURE = "case-study.png"
FRESH = 10**6  # a round that no run comes to


def draw_figures(name: str, runs: Runs, file: Path, source: Path | None) -> list[Path]:
    """Draw from runs, or from results at `source` where given; the files written.

    `file` and `source` are a table's JSON files: pictures and curves lie beside them.
    """
    if name == "case-study" and source is None:
        return draw_case_studies(runs)
    if name != "figure2":
        return []
    picture, curves = file.with_suffix(".png"), curves_file(file)
    found = collect_curves(runs) if source is None else load_curves(curves_file(source))
    if not found:
        print(f"no {picture.name}: there are no runs of figure2 to draw it from")
        return []
    draw_curves(found, picture)
    if source is not None:
        return [picture]
    save_curves(found, curves)
    return [curves, picture]


def curves_file(file: Path) -> Path:
    """Where the curves of a result file are kept.

    >>> curves_file(Path("results/reproduce-figure2.json")).name
    'reproduce-figure2-curves.json'
    """
    return file.with_name(f"{file.stem}-curves.json")


@dataclass(frozen=True)
class Curve:
    """One run: accuracy on validation classes at some updates, and the mean loss up to each."""

    panel: str
    strategy: str
    seed: int
    updates: tuple[int, ...]
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]


def collect_curves(runs: Runs) -> list[Curve]:
    """What the runs of figure2 have logged so far."""
    wanted = {cell.setting for cell in cells("figure2")}
    found = []
    for (setting, seed), run in runs.items():
        if setting in wanted and (run.folder / "events.jsonl").is_file():
            panel = f"{setting.learner}, {100 * setting.noise:.0f}% noise"
            found.append(_curve(panel, setting.strategy, seed, Run.open(run.folder)))
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
        found = []
        for row in json.loads(path.read_text(encoding="utf-8")):
            columns = (tuple(row[key]) for key in ("updates", "accuracy", "loss"))
            found.append(Curve(row["panel"], row["strategy"], row["seed"], *columns))
        if any(curve.strategy not in COLORS for curve in found):
            raise ValueError("an unknown strategy")
        return found
    except FileNotFoundError:
        raise DertsError(f"no curves at {path}: write them with derts reproduce figure2") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DertsError(f"{path} holds no curves ({error}): write it again") from None


def draw_curves(found: Sequence[Curve], path: Path) -> None:
    """Two panels, accuracy and loss, for each group of runs that differ only in strategy."""
    groups = list(dict.fromkeys(curve.panel for curve in found))
    figure = _figure(10, 3.6 * len(groups))
    panels = figure.subplots(len(groups), 2, squeeze=False)
    for title, (left, right) in zip(groups, panels, strict=True):
        for strategy, color in COLORS.items():
            mine = [one for one in found if one.panel == title and one.strategy == strategy]
            if mine:
                _draw_line(left, mine, "accuracy", color)
                _draw_line(right, mine, "loss", color)
        left.set(title=title, xlabel="updates", ylabel="accuracy on validation classes, %")
        right.set(title=title, xlabel="updates", ylabel="training loss (labels as trained on)")
        left.legend(frameon=False, fontsize=8)
    save_figure(figure, path, dpi=150)


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_line(axes: Any, runs: Sequence[Curve], key: str, color: str) -> None:
    """Mean over seeds with its 95% interval, at the updates that all runs have reached."""
    by_update = [dict(zip(run.updates, getattr(run, key), strict=True)) for run in runs]
    updates = [at for at in runs[0].updates if all(at in values for values in by_update)]
    means = [over_seeds([values[at] for values in by_update]) for at in updates]
    axes.plot(
        updates, [estimate.mean for estimate in means], color=color, linewidth=1.4,
        label=runs[0].strategy, marker="o" if len(updates) == 1 else None,
    )  # fmt: skip
    if len(runs) > 1:
        low = [estimate.mean - estimate.interval for estimate in means]
        high = [estimate.mean + estimate.interval for estimate in means]
        axes.fill_between(updates, low, high, color=color, alpha=0.15, linewidth=0)


def draw_case_studies(runs: Runs) -> list[Path]:
    """A picture in the folder of each finished run of the study; the files there are now."""
    wanted = {cell.setting for cell in cells("case-study")}
    tables: dict[str, Mapping[str, ImageTable]] = {}
    drawn = []
    for (setting, _), run in runs.items():
        picture, data = run.folder / PICTURE, run.config.data
        if setting not in wanted or not (run.folder / "result.json").is_file():
            continue
        if not picture.exists() and (data == "glyphs" or Path(data).exists()):
            if data not in tables:
                tables[data] = open_data(data)
            draw_case_study(run, tables[data], picture)
        drawn += [picture] if picture.exists() else []
    return drawn


def draw_case_study(run: GridRun, tables: Mapping[str, ImageTable], path: Path) -> None:
    """Let the trained run choose from a fresh pool; draw tasks of both kinds, taken at random."""
    trainer = open_trainer(run.folder, tables, last=True)
    strategy, seed = trainer.strategy, (run.config.seed, "case-study", 0)
    assert isinstance(strategy, PoolStrategy)
    drawn = strategy.draw(trainer.context, FRESH)
    choice = strategy.choose(trainer.context, drawn, seed).settled()
    assert choice.estimate is not None
    left = torch.ones(len(drawn.pool), dtype=torch.bool)
    left[choice.selected] = False
    tasks, notes = [], []
    for kind, which in (("selected", choice.kept), ("not selected", left.nonzero().squeeze(1))):
        order = torch.randperm(len(which), generator=generator((*seed, "shown")))
        for task in which[order[:SHOWN]].tolist():
            accuracy = 100 * float(choice.estimate.accuracies[task])
            weight = float(choice.weights[task])
            tasks.append(task)
            notes.append(f"{kind}\nweight {weight:.2f}\n{accuracy:.0f}% right")
    _draw_tasks(trainer.images, drawn.pool[tasks], notes, path)


def _draw_tasks(table: ImageTable, tasks: TaskPool, notes: list[str], path: Path) -> None:
    """A row per task, a column per class, the class names above the pictures."""
    figure = _figure(2 * tasks.way + 1.5, 2.2 * len(tasks))
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
