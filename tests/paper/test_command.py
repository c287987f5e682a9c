"""derts reproduce as a user meets it: every name runs on glyphs, mistakes are one line."""

import re
from pathlib import Path

import pytest

from derts.cli import run
from derts.paper.board import board
from derts.paper.job import Job
from derts.paper.numbers import paper
from derts.paper.recipe import NAMES, cells

GLYPHS = ["--dataset", "glyphs", "--updates-scale", "0.0002", "--seeds", "1", "--quiet"]


def test_the_dry_run_lists_every_cell_of_every_table(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["reproduce", "all", "--dry-run", "--devices", "cpu"]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    for name in NAMES:
        assert sum(line.startswith(f"{name} ") for line in lines) == len(cells(name))
    assert sum(len(table["cells"]) for table in paper()["tables"].values()) < len(lines)
    assert all("(assumed)" in line for line in lines if line.startswith("table1 "))
    needy = "3 of 3 seeds to run, in a run counted above; needs --dataset mini=PATH"
    assert all(line.endswith(needy) for line in lines if line.startswith("case-study "))
    assert not any(in_folder.iterdir())


def test_every_table_and_figure_runs_on_glyphs_once(
    tiny: None, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["reproduce", "all", *GLYPHS, "--devices", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "not run" not in shown
    assert "glyphs for tiered-imagenet 5-way 1-shot cnn4" in shown
    assert "Run on the built-in glyphs instead of ImageNet" in shown
    report = in_folder / "runs" / "reproduce" / "report"
    for name in NAMES:
        assert f"{name}: " in shown
        for suffix in (".md", ".html", ".json"):
            assert (report / f"reproduce-{name}-glyphs-x0.0002{suffix}").stat().st_size
        # glyphs are nothing to hold against ImageNet
        assert "🟢" not in (report / f"reproduce-{name}-glyphs-x0.0002.md").read_text()
    assert (report / "reproduce-figure2-glyphs-x0.0002.png").read_bytes().startswith(b"\x89PNG")
    runs = in_folder / "runs" / "reproduce" / "glyphs"
    pictures = list(runs.glob("*/case-study.png"))
    assert len(pictures) == 2  # paper and derts
    assert sorted(in_folder.rglob("*.png")) == sorted(
        [*pictures, report / "reproduce-figure2-glyphs-x0.0002.png"]
    )

    before = {path: path.stat().st_mtime_ns for path in runs.glob("*/result*.json")}
    assert run(["reproduce", "all", *GLYPHS, "--devices", "cpu"]) == 0
    assert {path: path.stat().st_mtime_ns for path in runs.glob("*/result*.json")} == before
    capsys.readouterr()
    assert run(["reproduce", "table4", *GLYPHS, "--dry-run", "--devices", "cpu"]) == 0
    assert "108 cells, 108 finished" in capsys.readouterr().out
    # runs of any table and scale tell how long others take
    other = ["--dataset", "glyphs", "--updates-scale", "0.001", "--devices", "cpu", "--dry-run"]
    assert run(["reproduce", "table1", *other]) == 0
    shown = capsys.readouterr().out
    assert "3 of 3 seeds to run" in shown
    assert "(assumed)" not in shown

    committed = in_folder / "results"
    report.rename(committed)
    (committed / "reproduce-table2-glyphs-x0.0002.json").unlink()
    assert run(["reproduce", "table2", "table4", *GLYPHS, "--report", "--from", "results"]) == 0
    shown = capsys.readouterr().out
    assert "There is no results/reproduce-table2-glyphs-x0.0002.json." in shown
    assert run(["reproduce", "table2", *GLYPHS, "--report", "--from", "results"]) == 2
    assert "it has no reproduce-table2-glyphs-x0.0002.json; there are" in capsys.readouterr().err
    assert run(["reproduce", "table4", *GLYPHS, "--report", "--from", str(committed)]) == 0
    again = report / "reproduce-table4-glyphs-x0.0002.md"
    assert again.read_text() == (committed / again.name).read_text()
    assert run(["reproduce", "figure2", *GLYPHS, "--report", "--from", str(committed)]) == 0
    figure = report / "reproduce-figure2-glyphs-x0.0002.png"
    assert figure.read_bytes() == (committed / figure.name).read_bytes()


def test_only_what_is_asked_for_is_run_and_reported(
    tiny: None, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--only", "learner=protonet,shot=5", "strategy=random,strategy=derts"]
    words = ["reproduce", "table3", *GLYPHS[:-1], *few]
    assert run([*words, "--report"]) == 0
    assert capsys.readouterr().out.count("not run") == 3  # two cells and the sum
    assert run([*words, "--only", "strategy=random", *few[1:2]]) == 0
    captured = capsys.readouterr()
    assert (
        "1/1 runs; finished glyphs for mini-imagenet 5-way 5-shot cnn4, 16 classes" in captured.err
    )
    # random was run before: the difference is taken though it is not asked for
    assert run([*words, "--only", "strategy=derts", *few[1:2]]) == 0
    shown = capsys.readouterr().out
    assert "random not run" not in shown
    (line,) = [line for line in shown.splitlines() if " derts " in line and "100%" in line]
    assert re.search(r"\d [+-]\d+\.\d\d ", re.sub(" +", " ", line))
    # the file holds the whole table
    report = Path("runs/reproduce/report/reproduce-table3-glyphs-x0.0002.md").read_text()
    assert report.count("| not run |") == 18 - 2


def test_a_table_that_only_empties_is_named(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["table1", "table2", "--only", "fraction=0.1", "--dry-run", "--devices", "cpu"]
    assert run(["reproduce", *words]) == 0
    assert capsys.readouterr().out.startswith("table2: --only leaves none of its cells\n")


def test_mistakes_are_one_line(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["table9"], "did you mean"),
        ([], "nothing to reproduce"),
        (["table1"], "no data for these cells: add --dataset mini=PATH --dataset tiered=PATH"),
        (["table1", "--dataset", "mini"], "--dataset 'mini' is not understood"),
        (["table1", "--only", "shot=3"], "--only shot=3 leaves nothing"),
        (["table1", "--seeds", "0"], "--seeds is 0"),
        (["table1", "--updates-scale", "nan"], "--updates-scale is nan"),
        (["table1", "--preset", "nothing"], "no preset 'nothing'"),
        (["table1", "--preset", "gpu", "derts"], "--preset gpu derts changes strategy"),
        (["table1", "--from", "results"], "add --report"),
        (["table1", "--dry-run", "--report"], "give one of them"),
        (["table1", "--report", "--from", "results"], "no results at"),
        (["table3", "--dataset", "mini=nowhere"], "nowhere does not exist"),
        (["table3", "--dataset", "glyphs", "--devices", "cuda:99"], "cuda:99 cannot be used"),
    ):
        assert run(["reproduce", *words]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert said in lines[0]


class Terminal:
    """Looks like a terminal and keeps what is written."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_a_live_table(protonet_jobs: list[Job]) -> None:
    first, second = protonet_jobs[:2]
    terminal = Terminal()
    with board([first, second], quiet=False, stream=terminal) as shown:  # type: ignore[arg-type]
        shown.started(first, "cuda:0")
        shown.advanced(first, 5, "loss 1.0")
        shown.ended(first, "finished", "accuracy 60.00%")
        shown.started(second, "cuda:1")
        shown.advanced(second, 3, "loss [bold]2[/bold]")
    assert "1/2 runs" in terminal.text
    assert "accuracy 60.00%" in terminal.text
    assert "3/10" in terminal.text
    assert "[bold]" in terminal.text  # shown as it is, not obeyed
