"""What `derts diagnose` measures, and that it writes it down."""

import json
from pathlib import Path

import pytest
import torch

from derts.cli import run
from derts.data import ImageTable
from derts.diagnosis import diagnose, distance_rank_correlation, relative_error
from derts.tasks import TaskNoise, TaskPool, generator
from tests.tiny import tiny_learner

pytestmark = pytest.mark.slow

Tables = dict[str, ImageTable]


def test_the_relative_error_is_that_of_the_weighted_sum() -> None:
    exact = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 3.0]])
    everything = relative_error(exact, torch.arange(4), torch.ones(4))
    assert everything == pytest.approx(0.0, abs=1e-6)
    # weights become 3, 1 (sum 4): (3, 1) against (3, 4)
    found = relative_error(exact, torch.tensor([0, 1]), torch.tensor([3.0, 1.0]))
    assert found == pytest.approx(3 / 5)


def test_rank_correlation_is_one_for_the_same_distances_and_none_for_others() -> None:
    rows = torch.randn(200, 6, generator=generator(0))
    assert distance_rank_correlation(rows, 3 * rows + 1) == pytest.approx(1.0, abs=1e-6)
    other = torch.randn(200, 6, generator=generator(1))
    assert abs(distance_rank_correlation(rows, other)) < 0.2


@pytest.mark.parametrize("name", ["anil", "protonet", "maml"])
def test_every_estimate_of_a_learner_is_shown(name: str, letters: Tables) -> None:
    images = letters["train"]
    learner = tiny_learner(name, images)
    noise = TaskNoise(0.5)
    pool = TaskPool.sample(images, tasks=20, way=3, shot=2, query=3, seed=0, noise=noise)
    found = diagnose(learner, images, pool, draws=5)
    rows = {row["estimate"]: row for row in found["estimates"]}
    assert len(rows) == (4 if name == "maml" else 6)
    assert rows["exact"]["rank_correlation"] == pytest.approx(1.0)
    assert found["selected"] == 6
    for row in found["estimates"]:
        assert all(error >= 0 for error in row["error"].values())
        assert 1 <= row["effective_tasks"] <= 6
    assert [row["score"] for row in found["scores"]] == [
        "norm of logit-theta",
        "norm of logit",
        "loss",
    ]
    assert all(0 <= row["auroc"] <= 1 for row in found["scores"])
    clean = TaskPool.sample(images, tasks=20, way=3, shot=2, query=3, seed=0)
    assert all(row["auroc"] is None for row in diagnose(learner, images, clean, draws=5)["scores"])


def test_the_command_writes_table_json_and_figure(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model.width", "4", "--updates", "2", "--evaluation.tasks", "5", "--quiet"]
    assert run(["train", "--preset", "demo", *flags, "--out", "run"]) == 0
    assert run(["diagnose", "run", "--pool", "12", "--draws", "3", "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert "rank correlation" in shown
    assert "AUROC" in shown
    assert json.loads((in_folder / "run" / "diagnosis.json").read_text())["pool"] == 12
    assert (in_folder / "run" / "diagnosis.png").stat().st_size > 10_000
