"""A run is moved, its data is moved, and a finished run is trained for longer."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from derts.cli import run
from derts.data import ImageTable, save_table
from derts.training.checkpoint import newest_checkpoint
from derts.training.run_folder import Run
from tests.test_cli import failure
from tests.tiny import TINY_WORDS

TINY = [*TINY_WORDS, "--evaluation.tasks", "5", "--updates", "4", "--checkpoint-every", "2"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, letters: dict[str, ImageTable]) -> Path:
    """A folder with a store and a finished run on it, by a relative path."""
    folder = tmp_path_factory.mktemp("made")
    save_table(letters, folder / "store")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run(["train", *TINY, "--data", "store", "--out", "runs/first"]) == 0
    return folder


@pytest.fixture
def moved(made: Path, in_folder: Path) -> Path:
    """A copy of it, which is not the current folder."""
    shutil.copytree(made, in_folder / "copy")
    return in_folder / "copy"


def accuracy(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run(["evaluate", *words]) == 0
    return capsys.readouterr().out.splitlines()[0]


def test_data_is_found_from_the_run_or_near_it(
    moved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = str(moved / "runs" / "first")
    reached = accuracy(capsys, first)
    shutil.move(moved / "store", moved / "other-name")
    assert accuracy(capsys, first) == reached  # found by its fingerprint
    shutil.move(moved / "other-name", moved / "runs" / "store")
    assert accuracy(capsys, first) == reached
    shutil.move(moved / "runs" / "store", "far-away")
    assert "say with --data where it is now" in failure(capsys, "evaluate", first)
    assert accuracy(capsys, first, "--data", "far-away") == reached
    assert run(["report", first]) == 0  # without pictures


def test_another_store_near_the_run_is_not_taken_for_its_own(
    moved: Path, letters: dict[str, ImageTable], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(moved / "store")
    table = letters["train"]
    save_table(
        {"train": ImageTable(255 - table.images, table.labels, table.class_names)}, moved / "store"
    )
    assert "say with --data" in failure(capsys, "evaluate", str(moved / "runs" / "first"))


def test_a_finished_run_is_extended(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = moved / "runs" / "first"
    assert "give more --updates" in failure(capsys, "train", "--resume", str(first))
    assert "extended, not shortened" in failure(
        capsys, "train", "--resume", str(first), "--updates", "3"
    )
    assert "leave out --seed" in failure(capsys, "train", "--resume", str(first), "--seed", "7")
    before = json.loads((first / "result.json").read_text())
    assert run(["train", "--resume", str(first), "--updates", "10", "--quiet"]) == 0
    said = capsys.readouterr().err
    assert "10 updates instead of 4: the learning rate follows the cosine" in said
    assert "0.0026 at update 5" in said  # 0.004 × ½ (1 + cos 0.4 π)
    after = Run.open(first)
    result = after.result()
    assert result is not None
    assert (after.config.updates, result["updates"]) == (10, 10)
    assert json.loads((first / "result-0000004.json").read_text()) == before
    assert [event["update"] for event in after.events() if event["event"] == "update"][-1] == 10
    found = newest_checkpoint(first / "checkpoints")
    assert found is not None
    assert found[1]["update"] == 10
    assert any("instead of 4" in note for note in result["notes"])


def test_an_extended_run_that_is_stopped_goes_on(moved: Path) -> None:
    """Its config has the new length, so resuming it is as always."""
    first, second = moved / "runs" / "first", moved / "runs" / "second"
    shutil.copytree(first, second)
    assert run(["train", "--resume", str(first), "--updates", "8", "--quiet"]) == 0
    assert run(["train", "--resume", str(second), "--updates", "8", "--quiet"]) == 0
    for file in sorted((second / "checkpoints").iterdir())[1:]:
        file.unlink()  # as if it had been killed before its end
    (second / "result.json").unlink()
    assert run(["train", "--resume", str(second), "--quiet"]) == 0
    states = [newest_checkpoint(one / "checkpoints") for one in (first, second)]
    assert states[0] is not None
    assert states[1] is not None
    for name, value in states[0][1]["learner"].items():
        assert torch.equal(value, states[1][1]["learner"][name])
