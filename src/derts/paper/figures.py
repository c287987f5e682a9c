"""Pictures of runs: figure2's training curves, and the case study's tasks.

The case study shows images of the data set and is written into the run folders, nowhere else.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from derts.data import open_data
from derts.errors import DertsError
from derts.files import parse_json, write_atomically
from derts.paper.cells import cells, read_json
from derts.paper.collect import DAMAGED
from derts.paper.runs import GridRun
from derts.report.figures import draw_band, new_figure, save_figure
from derts.report.pictures import draw_sheet, to_picture
from derts.selection.rounds import PoolStrategy
from derts.statistics import over_seeds
from derts.tasks.randomness import generator
from derts.training.run import open_trainer
from derts.training.run_folder import Run

DRAWN = ("figure2", "case-study")  # from run folders
COLORS = {
    "random": "#718096", "random-votes": "#c05621", "us": "#d69e2e", "ats": "#805ad5",
    "paper": "#2b6cb0", "derts": "#2f855a",
}  # fmt: skip
SHOWN = 3  # tasks of each kind
FRESH = 10**6  # a round that no run comes to


@dataclass(frozen=True)
class Curve:
    """One run: accuracy on validation classes at some updates, and the mean loss up to each."""

    panel: str
    strategy: str
    seed: int
    updates: tuple[int, ...]
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]


def draw_pictures(
    name: str, runs: Sequence[GridRun], file: Path, source: Path | None
) -> list[Path]:
    """Draw from runs, or from results at `source` where given; the files written.

    `file` and `source` are a table's JSON files: pictures and curves lie beside them.
    """
    mine = [run for run in runs if run.setting in {cell.setting for cell in cells(name)}]
    if name == "case-study":
        return [picture for run in mine if (picture := draw_case_study(run)) is not None]
    if name != "figure2":
        return []
    picture = file.with_suffix(".png")
    curves = (source or file).with_name(f"{file.stem}-curves.json")
    found = collect_curves(mine) if source is None else load_curves(curves)
    if not found:
        print(f"no {picture.name}: there are no runs of figure2 to draw it from")
        return []
    draw_curves(found, picture)
    return [picture] if source is not None else [save_curves(found, curves), picture]


def collect_curves(runs: Sequence[GridRun]) -> list[Curve]:
    """What runs of figure2 have logged so far: at each validation, the mean loss since the last."""
    found = []
    for run in runs:
        points: list[tuple[Any, ...]] = []
        losses: list[float] = []
        logged = (run.folder / "events.jsonl").is_file()
        for event in Run.open(run.folder).events() if logged else ():
            if event["event"] == "update":
                losses += [event["loss"]] if "loss" in event else []  # none: all were skipped
            elif event["event"] == "validation" and losses:
                loss = sum(losses) / len(losses)
                points.append((event["update"], round(event["accuracy"], 4), round(loss, 6)))
                losses = []
        if points:
            panel = f"{run.setting.learner}, {100 * run.setting.noise:.0f}% noise"
            about = panel, run.setting.strategy, run.config.seed
            found.append(Curve(*about, *zip(*points, strict=True)))
    return found


def save_curves(found: Sequence[Curve], path: Path) -> Path:
    lines = ",\n".join(json.dumps(asdict(curve)) for curve in found)
    write_atomically(path, f"[\n{lines}\n]\n".encode())
    return path


def load_curves(path: Path) -> list[Curve]:
    try:
        return [_curve(row) for row in parse_json(path.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        raise DertsError(f"no curves at {path}: write them with derts reproduce figure2") from None
    except DAMAGED as error:
        raise DertsError(f"{path} holds no curves ({error}): write it again") from None


def _curve(row: dict[str, Any]) -> Curve:
    columns = zip(row["updates"], row["accuracy"], row["loss"], strict=True)
    points = [(int(update), float(accuracy), float(loss)) for update, accuracy, loss in columns]
    if not all(abs(value) <= 1e9 for point in points for value in point):
        raise ValueError("it has impossible values")
    about = str(row["panel"]), str(row["strategy"]), int(row["seed"])
    return Curve(*about, *zip(*points, strict=True))


def draw_curves(found: Sequence[Curve], path: Path) -> None:
    """Two panels, accuracy and loss, for each group of runs that differ only in strategy."""
    groups = list(dict.fromkeys(curve.panel for curve in found))
    figure = new_figure((10, 3.6 * len(groups)))
    panels = figure.subplots(len(groups), 2, squeeze=False)
    for title, (left, right) in zip(groups, panels, strict=True):
        for strategy in COLORS:
            mine = [one for one in found if one.panel == title and one.strategy == strategy]
            if mine:
                _draw_line(left, mine, "accuracy")
                _draw_line(right, mine, "loss")
        left.set(title=title, xlabel="updates", ylabel="accuracy on validation classes, %")
        right.set(title=title, xlabel="updates", ylabel="training loss (labels as trained on)")
        left.legend(frameon=False, fontsize=8)
    save_figure(figure, path, dpi=150)


def _draw_line(axes: Any, runs: Sequence[Curve], key: str) -> None:
    """Mean over seeds with its 95% interval, at the updates that all runs have reached."""
    by_update = [dict(zip(run.updates, getattr(run, key), strict=True)) for run in runs]
    updates = [at for at in runs[0].updates if all(at in values for values in by_update)]
    points = [over_seeds([values[at] for values in by_update]) for at in updates]
    pairs = [(point.mean, point.interval) for point in points]
    means, half = np.array(pairs).reshape(-1, 2).T
    band = (means - half, means + half) if len(runs) > 1 else None
    draw_band(axes, updates, means, band, runs[0].strategy, COLORS[runs[0].strategy])


def draw_case_study(run: GridRun) -> Path | None:
    """Let a finished run choose from a fresh pool; draw tasks of both kinds, taken at random.

    A row is a task, two support images per class. None where there is no picture and no data.
    """
    path, data = run.folder / "case-study.png", run.config.data
    if path.exists():
        return path
    at_hand = data == "glyphs" or Path(data).exists()
    if not at_hand or not (run.folder / "result.json").is_file():
        return None
    trainer = open_trainer(run.folder, open_data(data), last=True)
    strategy, seed = trainer.strategy, (run.config.seed, "case-study", 0)
    assert isinstance(strategy, PoolStrategy)
    drawn = strategy.draw_pool(trainer.context, FRESH)
    choice = strategy.choose(trainer.context, drawn, seed).settled()
    assert choice.estimate is not None
    left = torch.ones(len(drawn.pool), dtype=torch.bool)
    left[choice.selected] = False
    pool, images, pictures, captions = drawn.pool, trainer.images, [], []
    words = read_json("class_names.json")
    for kind, which in (("selected", choice.kept), ("not selected", left.nonzero().squeeze(1))):
        order = torch.randperm(len(which), generator=generator((*seed, "shown")))
        for task in which[order[:SHOWN]].tolist():
            right = 100 * float(choice.estimate.accuracies[task])
            note = f"{kind}\nweight {float(choice.weights[task]):.2f}\n{right:.0f}% right"
            for label in range(pool.way):
                mine = pool.support[task][pool.support_labels[task] == label][:2]
                name = images.class_names[int(images.labels[mine[0]])]
                pictures += [to_picture(pixels) for pixels in images.gather(mine)]
                captions += [f"{words.get(name, name)}\n{note}"] * len(mine)
    draw_sheet(pictures, captions, path, f"{run}: tasks of a fresh pool")
    return path
