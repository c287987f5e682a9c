"""Curves: what runs logged, by update, kept as JSON."""

from pathlib import Path

import pytest

from derts.config import TrainConfig
from derts.errors import DertsError
from derts.paper.cells import cells
from derts.paper.figures import Curve, collect_curves, draw_curves, load_curves, save_curves
from derts.paper.runs import Scale, make_runs, parse_datasets
from derts.training.run_folder import Run


def test_curves_are_what_was_logged(tmp_path: Path) -> None:
    runs = make_runs(cells("figure2"), [0, 1], Scale(parse_datasets(["glyphs"])), tmp_path)
    first = runs[0]
    setting, seed = first.setting, first.config.seed
    run = Run(first.folder, TrainConfig())
    run.clear()
    spent = {"seconds": {"update": 0.1}}
    for event in (
        {"event": "start", "update": 0},
        {"event": "update", "update": 1, "loss": 1.0, **spent},
        {"event": "update", "update": 2, "loss": 2.0, **spent},
        {"event": "validation", "update": 2, "accuracy": 40.0},
        {"event": "note", "update": 2, "text": "anything"},
        {"event": "update", "update": 3, **spent},  # skipped: there is no loss
        {"event": "update", "update": 4, "loss": 0.5, **spent},
        {"event": "validation", "update": 4, "accuracy": 50.0},
        {"event": "update", "update": 5, "loss": 0.1, **spent},
    ):
        run.log(event)
    (found,) = collect_curves(runs)
    accuracy, loss = (40.0, 50.0), (1.5, 0.5)
    assert found == Curve("anil, 25% noise", setting.strategy, seed, (2, 4), accuracy, loss)
    save_curves([found], tmp_path / "curves.json")
    assert load_curves(tmp_path / "curves.json") == [found]


def test_runs_of_different_lengths_are_drawn_together(tmp_path: Path) -> None:
    long = Curve("p", "derts", 0, (1, 2, 3), (1.0, 2.0, 3.0), (3.0, 2.0, 1.0))
    short = Curve("p", "derts", 1, (1,), (1.0,), (3.0,))
    draw_curves([long, short], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


ROW = '[{"panel": "p", "strategy": "derts", "seed": 0, "updates": [1], "loss": [1.0], '


@pytest.mark.parametrize(
    "text",
    ["{", "[3]", '[{"panel": "p"}]', "3", ROW + '"accuracy": []}]', ROW + '"accuracy": [[]]}]',
     ROW + '"accuracy": [Infinity]}]'],
)  # fmt: skip
def test_damaged_curves_are_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(DertsError, match="holds no curves"):
        load_curves(tmp_path / "bad.json")
    with pytest.raises(DertsError, match="no curves at"):
        load_curves(tmp_path / "none.json")
