"""derts reproduce as a user meets it: every name runs on glyphs, mistakes are one line."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from derts.cli import run
from derts.errors import DertsError
from derts.paper.cells import NAMES, cells, read_recipe
from derts.paper.collect import collect
from derts.paper.experiment import estimated_seconds
from derts.paper.runs import GridRun
from tests.paper.conftest import TINY as TINY_RECIPE

pytestmark = pytest.mark.slow

GLYPHS = ["--dataset", "glyphs", "--updates-scale", "0.0002", "--seeds", "1", "--quiet"]
WORDS = [
    "reproduce", "table1", "--dataset", "glyphs", "--updates-scale", "0.0005", "--seeds", "2",
    "--devices", "cpu", "--quiet",
]  # fmt: skip
FEW = ["--only", "dataset=mini,shot=5,learner=protonet,strategy=random,strategy=derts"]
FILE = "reproduce-table1-glyphs-x0.0005.json"


def rows(file: Path) -> dict[tuple[str, int], Any]:
    return {(row["cell"], row["seed"]): row for row in json.loads(file.read_text())["rows"]}


def trained(in_folder: Path) -> list[str]:
    """Run folders there are, without what tells configs apart."""
    folders = (in_folder / "runs" / "reproduce" / "glyphs").glob("*")
    return sorted(folder.name.rpartition("-")[0] for folder in folders)


def test_the_dry_run_lists_every_cell_of_every_table(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["reproduce", "all", "--dry-run", "--devices", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in NAMES:
        assert sum(line.startswith(f"{name} ") for line in lines) == len(cells(name))
    assert all("(assumed)" in line for line in lines if line.startswith("table1 "))
    needy = "3 of 3 seeds to run, in a run counted above; needs --dataset mini=PATH"
    assert all(line.endswith(needy) for line in lines if line.startswith("case-study "))
    assert not any(in_folder.iterdir())


@pytest.mark.slow
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
    figure = report / "reproduce-figure2-glyphs-x0.0002.png"
    assert figure.read_bytes().startswith(b"\x89PNG")
    runs = in_folder / "runs" / "reproduce" / "glyphs"
    pictures = list(runs.glob("*/case-study.png"))
    assert len(pictures) == 2  # paper and derts
    assert sorted(in_folder.rglob("*.png")) == sorted([*pictures, figure])

    before = {path: path.stat().st_mtime_ns for path in runs.glob("*/result*.json")}
    again = ["table1", "table4", "figure2", "case-study"]
    assert run(["reproduce", *again, *GLYPHS, "--devices", "cpu"]) == 0
    assert {path: path.stat().st_mtime_ns for path in runs.glob("*/result*.json")} == before
    capsys.readouterr()
    assert run(["reproduce", "table4", *GLYPHS, "--dry-run", "--devices", "cpu"]) == 0
    assert "132 cells, 132 finished" in capsys.readouterr().out
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
    assert run(["reproduce", "figure2", *GLYPHS, "--report", "--from", str(committed)]) == 0
    for name in (figure.name, "reproduce-table4-glyphs-x0.0002.md"):
        assert (report / name).read_bytes() == (committed / name).read_bytes()


def test_only_what_is_asked_for_is_run_and_reported(
    tiny: None, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = "learner=protonet,shot=5"
    words = ["reproduce", "table3", *GLYPHS[:-1], "--devices", "cpu", "--only"]
    assert run([*words, f"{few},strategy=random,strategy=derts", "--report"]) == 0
    assert capsys.readouterr().out.count("not run") == 4  # random, paper, derts, US
    assert run([*words, f"{few},strategy=random"]) == 0
    said = "1/1 runs; finished glyphs for mini-imagenet 5-way 5-shot cnn4, 16 classes"
    assert said in capsys.readouterr().err
    # random was run before: the difference is taken though it is not asked for
    assert run([*words, f"{few},strategy=derts"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "ours − random" in line]
    assert re.search(r"[+-]\d+\.\d\d", line)
    # the file holds the whole table
    report = Path("runs/reproduce/report/reproduce-table3-glyphs-x0.0002.md").read_text()
    assert report.count("| not run |") > 10


def test_a_table_that_only_empties_is_named(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["table1", "table2", "--only", "fraction=0.1", "--dry-run", "--devices", "cpu"]
    assert run(["reproduce", *words]) == 0
    assert capsys.readouterr().out.startswith("table2: --only leaves none of its cells\n")


def test_a_result_with_holes_is_damaged_and_tells_no_times(protonet_runs: list[GridRun]) -> None:
    one = protonet_runs[0]
    one.folder.mkdir(parents=True)
    shape = {"tasks": {"way": 5}, "evaluation": {"query": 2}}
    result = {"config": shape, "updates": 0, "accuracies": [50.0], "seconds": {"update": 1.0}}
    one.result_at(1.0).write_text(json.dumps({**result, "machine": {}}))
    wanted = [cell for cell in cells("table1") if cell.setting == one.setting]
    with pytest.raises(DertsError, match=r"is damaged \(TypeError: .*run again"):
        collect(wanted, [one], {})
    assert estimated_seconds(one, "cpu")[1] == " (assumed)"


def test_mistakes_are_one_line(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_folder / "bad").mkdir()
    (in_folder / "bad" / FILE).write_text("{")
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
        (["table1", "--report", "--from", "a", "--known", "b"], "--from reports nothing but"),
        (["table1", "--known", "nowhere"], "no results at nowhere: --known takes a folder of"),
        (["table1", "--known", "bad"], "is not a result file of derts reproduce, or is damaged"),
        (["table3", "--dataset", "mini=nowhere"], "nowhere does not exist"),
        (["table3", "--dataset", "glyphs", "--devices", "cuda:99"], "cuda:99 cannot be used"),
    ):
        assert run(["reproduce", *words]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert said in lines[0]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report on random and derts of table 1 with two seeds."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(read_recipe("common"), "glyphs", TINY_RECIPE)
        assert run([*WORDS, *FEW, "--out", str(folder)]) == 0
    return folder / "report"


@pytest.fixture
def results(tiny: None, made: Path, in_folder: Path) -> Path:
    """The same without its run folders."""
    return Path(shutil.copytree(made, in_folder / "results"))


def test_what_is_known_is_not_run_again_and_is_reported(
    results: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*WORDS, *FEW, "--known", "results", "--dry-run"]) == 0
    assert "6 cells, 6 finished" in capsys.readouterr().out
    assert run([*WORDS, *FEW, "--known", "results"]) == 0
    assert trained(in_folder) == []
    report = in_folder / "runs" / "reproduce" / "report"
    assert rows(report / FILE) == rows(results / FILE)
    same = [(folder / FILE).with_suffix(".md").read_text() for folder in (report, results)]
    assert same[0] == same[1]
    # a third seed and another strategy join what is known
    more = ["--only", FEW[1].replace("random", "paper"), "--seeds", "3"]
    assert run([*WORDS, *more, "--known", "results"]) == 0
    names = [name.rpartition("5shot-cnn4-protonet-")[2] for name in trained(in_folder)]
    assert names == ["derts-5-seed2", *(f"paper-5-seed{seed}" for seed in range(3))]
    both = rows(report / FILE)
    assert {key: both[key] for key in rows(results / FILE)} == rows(results / FILE)
    assert {seed for _, seed in both} == {0, 1, 2}


@pytest.mark.parametrize(
    ("group", "name", "value", "again"),
    [
        ("strategy", "ratio", 0.123, ["derts"]),  # which random sampling does not ask for
        ("hardware", "precision", "bfloat16", []),
        ("strategy", "of_old", 1, ["derts", "random"]),  # a version that is no longer known
    ],
)
def test_results_of_another_recipe_do_not_count(
    group: str, name: str, value: object, again: list[str], results: Path, in_folder: Path
) -> None:
    content = json.loads((results / FILE).read_text())
    for config in content["configs"].values():
        config[group][name] = value
    (results / FILE).write_text(json.dumps(content))
    assert run([*WORDS, *FEW, "--known", "results"]) == 0
    assert sorted({name.split("-")[3] for name in trained(in_folder)}) == again


@pytest.mark.slow
def test_early_points_pictures_and_times_need_their_runs(
    results: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads((results / FILE).read_text())
    content["rows"] = [row for row in content["rows"] if "100% of" in row["cell"]]
    (results / FILE).write_text(json.dumps(content))
    assert run([*WORDS, "--only", f"{FEW[1]},fraction=1", "--known", "results"]) == 0
    assert trained(in_folder) == []
    assert run([*WORDS, *FEW, "--known", "results"]) == 0
    assert len(trained(in_folder)) == 4
    words = [*WORDS[2:], "--only", "dataset=mini,shot=5,learner=anil,strategy=paper"]
    assert run(["reproduce", "table1", *words, "--out", "first"]) == 0
    known = [*words, "--known", "first/report", "--out", "second"]
    capsys.readouterr()
    assert run(["reproduce", "table2", *known, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "--known has 0 of 2 results: its own may be of another --preset" in shown
    assert "1 cells, 0 finished" in shown
    assert run(["reproduce", "table1", "case-study", *known]) == 0
    assert len(list((in_folder / "second").glob("glyphs/*/case-study.png"))) == 2  # two seeds


def test_a_report_loses_no_results(
    results: Path, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = in_folder / "runs" / "reproduce" / "report"
    shutil.copytree(results, report)
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
