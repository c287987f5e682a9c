"""Result files stand for run folders that are gone, where today's recipe would make the same."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from derts.cli import run

WORDS = [
    "reproduce", "table1", "--dataset", "glyphs", "--updates-scale", "0.0005", "--seeds", "2",
    "--devices", "cpu", "--quiet",
]  # fmt: skip
FEW = ["--only", "dataset=mini,shot=5,learner=protonet,strategy=random,strategy=derts"]
FILE = "reproduce-table1-glyphs-x0.0005.json"


def rows(file: Path) -> dict[tuple[str, int], Any]:
    return {(row["cell"], row["seed"]): row for row in json.loads(file.read_text())["rows"]}


@pytest.fixture
def results(tiny: None, in_folder: Path) -> Path:
    """Random and derts of table 1 with two seeds; the run folders are gone."""
    assert run([*WORDS, *FEW]) == 0
    folder = in_folder / "results"
    shutil.move(in_folder / "runs" / "reproduce" / "report", folder)
    shutil.rmtree(in_folder / "runs")
    return folder


def trained(in_folder: Path) -> list[str]:
    """Run folders there are, without what tells configs apart."""
    folders = (in_folder / "runs" / "reproduce" / "glyphs").glob("*")
    return sorted(folder.name.rpartition("-")[0] for folder in folders)


def test_what_is_known_is_not_run_again_and_is_reported(
    results: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run([*WORDS, *FEW, "--known", "results", "--dry-run"]) == 0
    assert "6 cells, 6 finished" in capsys.readouterr().out
    assert run([*WORDS, *FEW, "--known", "results"]) == 0
    assert trained(in_folder) == []
    assert "not run" not in capsys.readouterr().out
    report = in_folder / "runs" / "reproduce" / "report"
    assert rows(report / FILE) == rows(results / FILE)
    assert (report / FILE).with_suffix(".md").read_text() == (
        (results / FILE).with_suffix(".md").read_text()
    )


def test_the_rest_is_run_and_both_are_reported(results: Path, in_folder: Path) -> None:
    more = ["--only", "dataset=mini,shot=5,learner=protonet,strategy=paper,strategy=derts"]
    assert run([*WORDS, *more, "--known", "results"]) == 0
    name = "5way5shot-cnn4-protonet-paper-5"
    assert trained(in_folder) == [f"{name}-seed0", f"{name}-seed1"]
    both = rows(in_folder / "runs" / "reproduce" / "report" / FILE)
    before = rows(results / FILE)
    assert {key: both[key] for key in before} == before
    assert len(both) == len(before) + 12  # glyphs stand for tiered-ImageNet as well


def test_a_third_seed_joins_two_that_are_known(results: Path, in_folder: Path) -> None:
    assert run([*WORDS[:-3], *FEW, "--seeds", "3", "--known", "results", "--quiet"]) == 0
    assert [name.rpartition("-")[2] for name in trained(in_folder)] == ["seed2", "seed2"]
    seeds = {seed for _, seed in rows(in_folder / "runs" / "reproduce" / "report" / FILE)}
    assert seeds == {0, 1, 2}


def test_results_of_another_recipe_do_not_count(results: Path, in_folder: Path) -> None:
    content = json.loads((results / FILE).read_text())
    for config in content["configs"].values():
        if config["strategy"]["name"] == "derts":
            config["strategy"]["ratio"] = 0.123
        else:
            config["strategy"]["ratio"] = 0.123  # which random sampling does not ask for
            config["hardware"]["compile"] = True  # nor do numbers depend on this
    (results / FILE).write_text(json.dumps(content))
    assert run([*WORDS, *FEW, "--known", "results"]) == 0
    assert all("derts" in name for name in trained(in_folder))
    assert len(trained(in_folder)) == 2


def test_settings_that_are_no_longer_known_do_not_count(results: Path, in_folder: Path) -> None:
    content = json.loads((results / FILE).read_text())
    for config in content["configs"].values():
        config["strategy"]["of_old"] = 1
    (results / FILE).write_text(json.dumps(content))
    assert run([*WORDS, *FEW, "--known", "results"]) == 0
    assert len(trained(in_folder)) == 4


def test_pictures_need_their_runs(
    results: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dataset", "glyphs", "--updates-scale", "0.0005", "--seeds", "1", "--quiet"]
    curves = ["reproduce", "figure2", *words, "--devices", "cpu", "--out", "curves"]
    only = ["--only", "learner=anil,strategy=random"]
    assert run([*curves, *only]) == 0
    assert run([*curves[:-1], "again", *only, "--known", "curves/report"]) == 0
    assert len(list((in_folder / "again" / "glyphs").glob("*"))) == 1


def test_a_run_of_which_early_points_are_unknown_is_made(results: Path, in_folder: Path) -> None:
    content = json.loads((results / FILE).read_text())
    content["rows"] = [row for row in content["rows"] if "100% of" in row["cell"]]
    (results / FILE).write_text(json.dumps(content))
    end = ["--only", f"{FEW[1]},fraction=1"]
    assert run([*WORDS, *end, "--known", "results"]) == 0
    assert trained(in_folder) == []
    assert run([*WORDS, *FEW, "--known", "results"]) == 0
    assert len(trained(in_folder)) == 4


def test_the_case_study_is_drawn_whatever_is_known(
    results: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paper = [*WORDS[2:], "--only", "dataset=mini,shot=5,learner=anil,strategy=paper"]
    assert run(["reproduce", "table1", *paper, "--out", "first"]) == 0
    known = ["--known", "first/report", "--out", "second"]
    assert run(["reproduce", "table1", "case-study", *paper, *known]) == 0
    assert len(list((in_folder / "second").glob("glyphs/*/case-study.png"))) == 2  # two seeds


def test_times_are_those_of_this_machine(
    tiny: None, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS[2:], "--only", "dataset=mini,shot=5,learner=anil,strategy=random"]
    assert run(["reproduce", "table1", *words, "--out", "first"]) == 0
    capsys.readouterr()
    assert run(["reproduce", "table2", *words, "--known", "first/report", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "--known has 0 of 2 results: its own may be of another --preset" in shown
    assert "1 cells, 0 finished" in shown


def test_a_report_loses_no_results(
    results: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = in_folder / "runs" / "reproduce" / "report"
    report.parent.mkdir(parents=True)
    shutil.copytree(results, report)
    capsys.readouterr()
    for number in ("", "-1"):  # a report of nothing, twice
        shutil.copy(results / FILE, report / FILE)
        assert run([*WORDS, "--report"]) == 0
        copy = report / f"earlier-{Path(FILE).stem}{number}.json"
        assert f"written  {copy.relative_to(in_folder)}" in capsys.readouterr().out
        assert copy.read_text() == (results / FILE).read_text()
    assert rows(report / FILE) == {}
    assert run([*WORDS, *FEW, "--report", "--known", "results"]) == 0
    assert "earlier-" not in capsys.readouterr().out  # nothing was there to lose
    content = json.loads((report / FILE).read_text())
    content["rows"][0]["correct"][0] += 1 if content["rows"][0]["correct"][0] == 0 else -1
    (report / FILE).write_text(json.dumps(content))  # as an earlier recipe may have it
    assert run([*WORDS, *FEW, "--report", "--known", "results"]) == 0
    assert f"earlier-{Path(FILE).stem}-2.json" in capsys.readouterr().out


def test_without_runs_there_are_no_curves(
    tiny: None, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["reproduce", "figure2", "--dataset", "glyphs", "--report"]) == 0
    assert "there are no runs of figure2 to draw it from" in capsys.readouterr().out
    assert not list(in_folder.rglob("*-curves.json"))


def test_mistakes_are_one_line(
    results: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run([*WORDS, "--known", "nowhere"]) == 2
    assert "no results at nowhere: --known takes a folder of" in capsys.readouterr().err
    assert run([*WORDS, "--report", "--known", "results", "--from", "results"]) == 2
    assert "--from reports nothing but what it names" in capsys.readouterr().err
    (results / FILE).write_text("{")
    assert run([*WORDS, "--known", "results"]) == 2
    error = capsys.readouterr().err
    assert f"results/{FILE} is not a result file of derts reproduce, or is damaged" in error
    assert "Traceback" not in error
