"""Reports: numbers that are right, words where there are none, nothing that breaks a page."""

import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from derts.errors import DertsError
from derts.paper.cells import Cell, Setting, cells, keep_only
from derts.paper.collect import CellResult, Results, load_results, save_results
from derts.paper.report import (
    WIN,
    TableReport,
    as_html,
    markdown,
    print_report,
    read_report,
    table_report,
)


def result(seed: int, right: int, updates: int = 10000, **values: Any) -> CellResult:
    """Two test tasks of 100 questions each."""
    known: dict[str, Any] = {
        "seconds_per_update": 0.5,
        "config": {"seed": seed},
        "code": {"source": "0123", "dirty": False},
    }
    known |= {"machine": {"processor": "abacus", "device": "cpu"}, "weights_of_update": updates}
    return CellResult(seed, updates, (right - 1, right + 1), 100, **(known | values))


@pytest.fixture
def default() -> Setting:
    """Table 5's default row, of which the paper has 63.07."""
    return next(cell.setting for cell in cells("table5") if not cell.setting.variant)


@pytest.fixture
def ablation(default: Setting) -> Results:
    """derts of the default row, paper of ratio 0.1 (61.70) and the baseline; others not run."""
    return {
        (default.of("random"), 1.0): {seed: result(seed, 60 + seed) for seed in range(3)},
        (default.of("derts"), 1.0): {seed: result(seed, 63 + seed) for seed in range(3)},
        (replace(default, ratio=0.1, strategy="paper"), 1.0): {1: result(1, 60, updates=1000)},
    }


def table(report: TableReport, place: str = "") -> dict[str, dict[str, str]]:
    """The rows of a group, by who made them, then by column."""
    return {
        row[3]: {
            name: text.removeprefix(WIN) for name, text in zip(report.heading, row, strict=True)
        }
        for row in report.rows
        if row[0].endswith(place or row[0])
    }


def wins(report: TableReport) -> list[str]:
    """The columns in which ours is at least the paper's."""
    pairs = (zip(report.heading, row, strict=True) for row in report.rows)
    return [name for row in pairs for name, text in row if text.startswith(WIN)]


def test_notes_from_files_print_escaped(
    ablation: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    report = table_report("table5", cells("table5"), ablation)
    print_report(replace(report, notes=("a\x1b[2Jb",)))
    assert "a\\x1b[2Jb" in capsys.readouterr().out


def test_rows_hold_the_papers_ours_and_differences(ablation: Results) -> None:
    report = table_report("table5", cells("table5"), ablation)
    rows = table(report, "cnn4")
    assert list(rows) == ["paper", "ours", "ours − random"]
    assert rows["paper"]["the paper's rule"] == "63.07 ± 0.71"
    assert rows["ours"] == {
        "setting": "mini-imagenet 5-way 5-shot cnn4", "learner": "anil", "training": "100%",
        "by": "ours", "random": f"61.00 ± {4.303 / math.sqrt(3):.2f}",
        "random + votes": "= random", "the paper's rule": "not run", "derts": "64.00 ± 2.48",
        "seeds": "3", "updates": "10000",
    }  # fmt: skip
    assert rows["ours − random"]["derts"] == "+3.00 ± 0.00"
    assert wins(report) == ["derts"]
    few = table(report, "ratio 0.1")
    assert few["ours"]["the paper's rule"] == "60.00 (1 of 3 seeds)"
    assert few["ours − random"]["the paper's rule"] == "-1.00"  # paired: seed 1 with seed 1
    assert few["ours"]["updates"] == "1000 or 10000"


def test_columns_are_there_whether_run_or_not() -> None:
    report = table_report("table4", cells("table4"), {})
    names = ("random", "random + votes", "the paper's rule", "derts", "US", "ATS")
    assert report.heading[4:10] == names
    for row in report.rows:
        learner, by, texts = row[1], row[3], row[4:10]
        if by == "ours":
            assert texts == (*["not run"] * 5, "not run" if learner == "anil" else "")
    assert table_report("table4", cells("table4"), {}, only_run=True).rows == ()


def test_a_shorter_run_stands_beside_the_papers_number_after_as_many_updates() -> None:
    found = keep_only(cells("table1"), ["dataset=mini,shot=5,learner=anil,strategy=random"])
    held: Results = {
        (cell.setting, cell.fraction): {0: result(0, 57, updates=round(1000 * cell.fraction))}
        for cell in found
    }
    report = table_report("table1", found, held)
    shown = [(row[3], row[4].removeprefix(WIN), row[-1]) for row in report.rows]
    assert shown[:2] == [("paper", "56.50 ± 0.80", "1000"), ("ours", "57.00", "100")]
    # not 62.83, which is after 10000
    assert shown[-2:] == [("paper", "56.50 ± 0.80", "1000"), ("ours", "57.00", "1000")]
    assert report.rows[-1][4].startswith(WIN)


def test_a_point_inside_the_warm_up_has_no_difference_to_random(
    ablation: Results, default: Setting
) -> None:
    key = default.of("derts"), 1.0
    for warmup, expected in ((10000, "warm-up only"), (9999, "+3.00 ± 0.00")):
        config = {"strategy": {"warmup": warmup}}
        ablation[key] = {s: replace(one, config=config) for s, one in ablation[key].items()}
        rows = table(table_report("table5", cells("table5"), ablation), "cnn4")
        assert rows["ours − random"]["derts"] == expected


def test_less_time_is_better() -> None:
    found = cells("table2")  # the paper's: 0.60 and 0.69
    held: Results = {
        (found[0].setting, 1.0): {0: result(0, 50, seconds_per_update=0.7)},
        (found[1].setting, 1.0): {0: result(0, 50, seconds_per_update=0.6)},
    }
    report = table_report("table2", found, held)
    assert wins(report) == ["US"]
    assert table(report)["ours − random"]["US"] == "-0.100"


@pytest.mark.parametrize(
    ("values", "note"),
    [
        ({"config": {"tasks": {"rotated": True}}}, "Each class is four: as it is, and rotated"),
        ({"config": {"augment": {"horizontal_flip": True, "translation": 8}}},
         "Augmentation, whatever the strategy: random horizontal flips and random translations of "
         "up to 8 pixels."),
        ({"config": {"evaluation": {"weights": "best"}}}, "weights that were best on validation"),
        ({"config": {"hardware": {"precision": "bfloat16"}}}, "on: abacus, in bfloat16."),
        ({"code": {"source": "0123", "dirty": True}}, "°: by code of which no commit is known."),
        ({"random_share": 0.5}, "`derts` trained on random tasks in 50% of its updates"),
    ],
)  # fmt: skip
def test_a_report_says_what_a_reader_must_know(
    values: dict[str, Any], note: str, ablation: Results
) -> None:
    changed = {
        key: {seed: replace(one, **values) for seed, one in seeds.items()}
        for key, seeds in ablation.items()
    }
    for held, said in ((ablation, False), (changed, True)):
        notes = " ".join(table_report("table5", cells("table5"), held).notes)
        assert (note in notes) == said


class Page(HTMLParser):
    """Counts tags and collects what cells say, by class."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.kind = ""
        self.said: dict[str, list[str]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.kind = dict(attrs).get("class") or ""

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "td":
            self.said.setdefault(self.kind, []).append(data)


def test_pages_are_whole_green_where_ours_wins_and_escape_everything(ablation: Results) -> None:
    evil = "<script>alert(1)</script>"
    report = table_report("table5", cells("table5"), ablation, [evil])
    rows = [(evil, *row[1:]) for row in report.rows]
    text = as_html(replace(report, title=evil, rows=tuple(rows)))
    page = Page()
    page.feed(text)
    assert not {"script", "link"} & set(page.tags)
    assert "http" not in text.replace("http-equiv", "")
    assert page.tags.count("tr") == 1 + len(rows)
    assert page.said["win"] == ["64.00 ± 2.48"]
    assert set(page.said["missing"]) == {"not run"}
    lines = [line for line in markdown(report).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(rows)
    assert len({line.count("|") for line in lines}) == 1
    assert sum("🟢" in line for line in lines) == 1


def test_numbers_by_code_of_no_commit_are_marked(
    tmp_path: Path, ablation: Results, default: Setting
) -> None:
    for key in ((default.of("random"), 1.0), (default.of("derts"), 1.0)):
        code = {"source": "4567", "commit": "of the tree before it was changed", "dirty": True}
        ablation[key][1] = replace(ablation[key][1], code=code)
    save_results(tmp_path / "a.json", "table5", whole(ablation), ablation, [])
    row = table(read_report(tmp_path / "a.json"), "cnn4")["ours"]
    assert row["random"].endswith(" °")
    assert row["derts"] == "64.00 ± 2.48 °"
    few = table(read_report(tmp_path / "a.json"), "ratio 0.1")["ours"]
    assert few["the paper's rule"] == "60.00 (1 of 3 seeds)"
    # a file beside it may name the commit that holds such code
    (tmp_path / "digests.json").write_text('{"4567": "a commit"}')
    assert table(read_report(tmp_path / "a.json"), "cnn4")["ours"]["derts"] == "64.00 ± 2.48"


def whole(held: Results) -> list[Cell]:
    """The cells of table 5 and the baseline."""
    first = cells("table5")[0]
    return [*cells("table5"), *(replace(first, setting=setting) for setting, _ in held)][:11]


def test_results_as_json_give_the_same_report(tmp_path: Path, ablation: Results) -> None:
    path = tmp_path / "some.json"
    save_results(path, "table5", whole(ablation), ablation, ["a note"])
    name, again, notes = load_results(path)
    assert (name, notes) == ("table5", ["a note"])
    assert again.keys() == ablation.keys()
    first, second = (table_report("table5", cells("table5"), held) for held in (ablation, again))
    assert first == second
    rows = json.loads(path.read_text())["rows"]
    assert [one["correct"] for one in rows if "ratio 0.1" in one["cell"]] == [[59, 61]]


@pytest.mark.parametrize(
    "values",
    [{"correct": []}, {"correct": [-1]}, {"correct": [10**6]}, {"correct": "abc"}, {"seed": "x"},
     {"questions": None}, {"random_share": "x"}],
)  # fmt: skip
def test_impossible_results_are_one_line(
    values: dict[str, object], tmp_path: Path, ablation: Results
) -> None:
    file = tmp_path / "bad.json"
    save_results(file, "table5", whole(ablation), ablation, [])
    content = json.loads(file.read_text())
    content["rows"][0] |= values
    file.write_text(json.dumps(content))
    with pytest.raises(DertsError, match=r"bad\.json is not a result file"):
        load_results(file)


def test_damaged_or_missing_results_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(DertsError, match="no results at"):
        load_results(tmp_path / "none.json")
    head = '"table": "table5"'
    for text in ("{", "[]", "{}", "[" * 200_000, f'{{{head}, "rows": [{{}}]}}',
                 f'{{{head}, "rows": 3}}', f'{{{head}, "rows": [], "notes": 7}}'):  # fmt: skip
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(DertsError, match=r"bad\.json is not a result file"):
            load_results(tmp_path / "bad.json")
