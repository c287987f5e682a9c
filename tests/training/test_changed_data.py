"""A store that was prepared again is not taken for the one that a run was trained on."""

from pathlib import Path

import pytest

from derts.cli import run
from derts.data import ImageTable, save_table
from derts.training import train
from derts.training.run_folder import Run
from tests.tiny import tiny

Tables = dict[str, ImageTable]


@pytest.fixture
def changed(in_folder: Path, letters: Tables) -> Path:
    """A finished run whose store now has other classes in its splits."""
    save_table(letters, "store")
    config = tiny(data="store", updates=4, checkpoint_every=2)
    train(config, "run", quiet=True)
    assert not Run.open("run").data_changed()
    moved = {"train": letters["train"], "val": letters["test"], "test": letters["val"]}
    save_table(moved, "store", overwrite=True)
    return in_folder


COMMANDS = {
    "evaluate": ["evaluate", "run", "--tasks", "4"],
    "inspect": ["inspect", "run", "--quiet"],
    "diagnose": ["diagnose", "run", "--pool", "8", "--draws", "2", "--quiet"],
    "clean": ["clean", "run", "clean-store", "--quiet"],
    "report": ["report", "run"],
    "resume": ["train", "--resume", "run", "--quiet"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_another_store_is_refused_unless_it_is_meant(
    name: str, changed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "resume":  # from its middle
        Path("run/result.json").unlink()
        max(Path("run/checkpoints").iterdir()).unlink()
    capsys.readouterr()
    assert run(COMMANDS[name]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "store, which run was trained on, was prepared again since" in line
    assert "--data-changed" in line
    if name != "inspect":  # as clean, but it takes seconds to draw
        assert run([*COMMANDS[name], "--data-changed"]) == 0
    if name == "evaluate":
        [written] = Path("run").glob("evaluation-*.json")
        assert "is not what the run was trained on" in written.read_text(encoding="utf-8")
    if name in ("report", "resume"):
        assert run(["report", "run", "--data-changed"]) == 0
        page = Path("report.html").read_text(encoding="utf-8")
        assert "it is not what the run was trained on" in page
        assert ("the data was prepared anew before update 3" in page) == (name == "resume")


def test_other_data_may_be_named(changed: Path, letters: Tables) -> None:
    save_table(letters, "moved")
    assert run([*COMMANDS["evaluate"], "--data", "moved"]) == 0


def test_an_equal_store_beside_it_is_taken_with_a_word(
    changed: Path, letters: Tables, capsys: pytest.CaptureFixture[str]
) -> None:
    save_table(letters, "moved")
    capsys.readouterr()
    assert run(COMMANDS["evaluate"]) == 0
    assert "moved, which has its fingerprint" in capsys.readouterr().err


def test_the_same_store_made_again_is_the_same(changed: Path, letters: Tables) -> None:
    save_table(letters, "store", overwrite=True)
    assert run(COMMANDS["evaluate"]) == 0
    Path("run/data.json").write_text("[")
    assert run(COMMANDS["evaluate"]) == 2


def test_a_run_goes_on_with_its_own_data_only(
    changed: Path, letters: Tables, capsys: pytest.CaptureFixture[str]
) -> None:
    save_table(letters, "moved")
    Path("run/result.json").unlink()
    max(Path("run/checkpoints").iterdir()).unlink()
    capsys.readouterr()
    Path("store").rename("other")
    assert run([*COMMANDS["resume"], "--data", "other"]) == 2
    assert "other is not what run was trained on" in capsys.readouterr().err
    assert run([*COMMANDS["resume"], "--data", "moved"]) == 0
