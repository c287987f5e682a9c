"""Reports: numbers that are right, words where there are none, nothing that breaks a page."""

import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from derts.errors import DertsError
from derts.paper.outcomes import (
    Outcome,
    Outcomes,
    load_outcomes,
    result_file,
    save_outcomes,
)
from derts.paper.recipe import Cell, cells, keep_only
from derts.paper.report import HEADING, as_html, make_report, markdown
from derts.paper.scale import Scale, parse_datasets

COLUMN = {name: number for number, name in enumerate(HEADING)}


def outcome(seed: int, right: int, updates: int = 10000, seconds: float | None = 0.5) -> Outcome:
    """Two test tasks of 100 questions each."""
    machine = {"processor": "abacus", "device": "cpu"}
    return Outcome(
        seed, updates, (right - 1, right + 1), 100, seconds, 0.6, machine, {"seed": seed}, {}
    )


def ablation() -> tuple[list[Cell], Outcomes]:
    """Table 5's default row (paper: 63.07), ratio 0.1 (61.70) and the baseline; others not run."""
    found = list(cells("table5"))

    def key(strategy: str, ratio: float = 0.3) -> tuple[object, float]:
        (cell,) = keep_only(
            [cell for cell in found if cell.setting.weights],
            [f"strategy={strategy}", f"ratio={ratio}"],
        )
        return cell.setting, cell.fraction

    values = {
        key("random"): {seed: outcome(seed, 60 + seed) for seed in range(3)},
        key("derts"): {seed: outcome(seed, 63 + seed) for seed in range(3)},
        key("paper", 0.1): {1: outcome(1, 60, updates=1000)},
    }
    return found, values  # type: ignore[return-value]


def row(text: str, found: list[Cell], outcomes: Outcomes) -> tuple[tuple[str, ...], str]:
    report = make_report("table5", "title", found, outcomes, [])
    (match,) = [row for row in report.rows if row.texts[COLUMN["strategy"]] == text]
    return match.texts, match.verdict


def test_a_row_holds_paper_ours_difference_updates_and_time() -> None:
    texts, verdict = row("derts", *ablation())
    half = 4.303 * 1 / math.sqrt(3)
    assert texts[COLUMN["paper"]] == "63.07 ± 0.71"
    assert texts[COLUMN["ours"]] == f"64.00 ± {half:.2f}"
    assert texts[COLUMN["ours − random"]] == "+3.00 ± 0.00"
    assert texts[COLUMN["updates"] - 1 : COLUMN["s/update"] + 1] == ("3", "10000", "0.500")
    assert verdict == "at least theirs"


def test_a_cell_below_with_one_seed_and_other_updates_says_all_that() -> None:
    texts, verdict = row("paper, ratio 0.1", *ablation())
    assert texts[COLUMN["ours"]] == "60.00"
    assert texts[COLUMN["ours − random"]] == "-1.00"  # paired: seed 1 with seed 1
    assert texts[COLUMN["updates"]] == "1000 (paper 10000)"
    assert verdict == "below"


def test_a_shorter_run_stands_beside_the_papers_number_after_as_many_updates() -> None:
    found = keep_only(
        cells("table1"), ["dataset=mini", "shot=5", "learner=anil", "strategy=random"]
    )
    held: Outcomes = {
        (cell.setting, cell.fraction): {0: outcome(0, 57, updates=round(1000 * cell.fraction))}
        for cell in found
    }
    report = make_report("table1", "title", found, held, [])
    early, _, full = report.rows
    assert early.texts[COLUMN["updates"]] == "100 (paper 1000)"
    assert full.texts[COLUMN["updates"]] == "1000"
    assert full.texts[COLUMN["paper"]] == "56.50 ± 0.80 at 1000"
    assert full.verdict == "at least theirs"  # 62.83 would be after 10000


def test_a_point_inside_the_warm_up_has_no_difference_to_random() -> None:
    found, outcomes = ablation()
    (setting,) = {cell.setting for cell in found if cell.setting.variant == "derts"}
    for warmup, expected in ((10000, "none: all of it warm-up"), (9999, "+3.00 ± 0.00")):
        config = {"strategy": {"warmup": warmup}}
        seeds = outcomes[setting, 1.0]
        outcomes[setting, 1.0] = {s: replace(one, config=config) for s, one in seeds.items()}
        assert row("derts", found, outcomes)[0][COLUMN["ours − random"]] == expected


def test_what_was_not_run_is_said_in_words() -> None:
    found, outcomes = ablation()
    texts, verdict = row("derts, no weights", found, outcomes)
    assert (texts[COLUMN["ours"]], verdict) == ("not run", "not run")
    report = make_report("table5", "title", found, outcomes, [])
    assert "8 of 11 cells were not run." in report.notes
    del outcomes[next(iter(outcomes))]
    assert row("derts", found, outcomes)[0][COLUMN["ours − random"]] == "random not run"


def test_less_time_is_better() -> None:
    found = list(cells("table2"))
    first, second = found[0], found[1]  # the paper's: 0.60 and 0.69
    slow, fast = outcome(0, 50, seconds=0.7), outcome(0, 50, seconds=0.6)
    held: Outcomes = {(first.setting, 1.0): {0: slow}, (second.setting, 1.0): {0: fast}}
    report = make_report("table2", "title", found, held, [])
    assert [one.verdict for one in report.rows[:2]] == ["below", "at least theirs"]
    assert report.rows[1].texts[COLUMN["ours − random"]] == "-0.100"


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


def test_pages_are_whole_green_where_ours_wins_and_escape_everything() -> None:
    found, outcomes = ablation()
    evil = "<script>alert(1)</script>"
    mean = [replace(cell, setting=replace(cell.setting, dataset=evil)) for cell in found]
    held = {(replace(s, dataset=evil), fraction): v for (s, fraction), v in outcomes.items()}
    report = make_report("table5", evil, mean, held, [evil])
    text = as_html(report)
    page = Page()
    page.feed(text)
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert "http" not in text
    assert page.tags.count("tr") == 1 + len(found)
    assert page.said["win"] == ["64.00 ± 2.48"]
    assert set(page.said["missing"]) == {"not run"}
    lines = [line for line in markdown(report).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(found)
    assert len({line.count("|") for line in lines}) == 1
    assert sum("🟢" in line for line in lines) == 1


def test_results_as_json_give_the_same_report(tmp_path: Path) -> None:
    found, outcomes = ablation()
    path = tmp_path / "some.json"
    save_outcomes(path, "table5", found, outcomes, ["a note"])
    name, again, notes = load_outcomes(path)
    assert (name, notes) == ("table5", ["a note"])
    first, second = (
        make_report("table5", "title", found, held, notes) for held in (outcomes, again)
    )
    assert first == second
    rows = json.loads(path.read_text())["rows"]
    assert [one["correct"] for one in rows if "ratio 0.1" in one["cell"]] == [[59, 61]]


def test_damaged_or_missing_results_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(DertsError, match="no results at"):
        load_outcomes(tmp_path / "none.json")
    table = '"table": "table5"'
    for text in ("{", "[]", f'{{{table}, "rows": [{{}}]}}', f'{{{table}, "rows": 3}}', "{}"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(DertsError, match=r"bad\.json is not a result file"):
            load_outcomes(tmp_path / "bad.json")


@pytest.mark.parametrize(
    "values",
    [
        {"correct": []},
        {"correct": "abc"},
        {"correct": [1.5]},
        {"correct": [float("nan")]},
        {"correct": [-1]},
        {"correct": [10**6]},
        {"questions": 0},
        {"updates": [1]},
        {"updates": 0},
        {"seed": "x"},
        {"seconds_per_update": "x"},
        {"seconds_with_evaluation": None},
        {"random_share": "x"},
        {"random_share": float("nan")},
        {"weights_of_update": "x"},
    ],
)
def test_impossible_results_are_one_line(values: dict[str, object], tmp_path: Path) -> None:
    found, outcomes = ablation()
    file = tmp_path / "bad.json"
    save_outcomes(file, "table5", found, outcomes, [])
    content = json.loads(file.read_text())
    content["rows"][0] |= values
    file.write_text(json.dumps(content))
    with pytest.raises(DertsError, match=r"bad\.json is not a result file.*impossible values"):
        load_outcomes(file)
    content["rows"] = []
    file.write_text(json.dumps(content | {"notes": 7}))
    with pytest.raises(DertsError, match=r"bad\.json is not a result file"):
        load_outcomes(file)


def test_other_shapes_of_results_are_one_line(tmp_path: Path) -> None:
    found, outcomes = ablation()
    file = tmp_path / "bad.json"
    save_outcomes(file, "table5", found, outcomes, [])
    content = json.loads(file.read_text())
    content["makers"] = {key: {"code": 5, "machine": 7} for key in content["makers"]}
    for text in (json.dumps(content), "[" * 200_000):
        file.write_text(text)
        with pytest.raises(DertsError, match=r"bad\.json is not a result file"):
            load_outcomes(file)


def test_files_of_different_scales_do_not_meet() -> None:
    data, glyphs = parse_datasets(["mini=m"]), parse_datasets(["glyphs"])
    scales = [Scale(data), Scale(data, 0.25), Scale(glyphs), Scale(data, presets=("derts",))]
    assert len({result_file(Path(), "table1", scale) for scale in scales}) == 4
    assert result_file(Path(), "table1", Scale(data, presets=("gpu",))).name == (
        "reproduce-table1.json"
    )


@pytest.mark.parametrize(
    ("turning", "words"),
    [
        ((), ""),
        (("derts",), "derts alone trains on turned classes: each is four"),
        (("random", "derts"), "Every strategy trains on turned classes: each is four"),
    ],
)
def test_a_report_says_who_has_turned_classes(turning: tuple[str, ...], words: str) -> None:
    found = keep_only(cells("table3"), ["strategy=random", "strategy=derts", "shot=5"])
    outcomes: Outcomes = {}
    for cell in found:
        config = {"tasks": {"turned": cell.setting.strategy in turning}}
        made = replace(outcome(0, 50), config=config)
        outcomes[cell.setting, cell.fraction] = {0: made}
    report = make_report("table3", "title", found, outcomes, [])
    notes = " ".join(report.notes)
    told = {row.texts[COLUMN["strategy"]] for row in report.rows}
    assert ("derts, turned" in told) == (turning == ("derts",))
    assert ("turned" in notes) == bool(words)
    assert words in notes
    assert ("--preset turned" in notes) == (turning == ("derts",))


def test_a_report_says_how_often_there_was_nothing_to_choose(tmp_path: Path) -> None:
    found, outcomes = ablation()
    key = next(key for key in outcomes if key[0].strategy == "derts")
    shares = dict(enumerate((1.0, 0.5, 0.0)))
    outcomes[key] = {
        seed: replace(one, random_share=shares[seed]) for seed, one in outcomes[key].items()
    }
    always = replace(outcome(1, 60), random_share=0.0, config={"strategy": {"selects": "always"}})
    outcomes[next(key for key in outcomes if key[0].strategy == "paper")] = {1: always}
    said = "In 50% of its updates after the warm-up derts had found nothing to mend"
    assert any(said in note for note in make_report("table5", "title", found, outcomes, []).notes)
    save_outcomes(tmp_path / "file.json", "table5", found, outcomes, [])
    _, again, _ = load_outcomes(tmp_path / "file.json")
    assert {seed: one.random_share for seed, one in again[key].items()} == shares
    none = {key: {seed: replace(one, random_share=0.0) for seed, one in outcomes[key].items()}}
    assert not any(
        "nothing to mend" in note for note in make_report("table5", "", found, none, []).notes
    )


@pytest.mark.parametrize(
    ("augment", "note"),
    [
        ({"mirror": False, "shift": 0}, None),
        ({"mirror": True, "shift": 0}, "Training images are mirrored anew"),
        ({"mirror": True, "shift": 8}, "Training images are mirrored and moved by up to 8 pixels"),
    ],
)
def test_a_report_says_that_images_are_seen_anew(
    augment: dict[str, object], note: str | None
) -> None:
    found, outcomes = ablation()
    changed = {
        key: {seed: replace(one, config={"augment": augment}) for seed, one in seeds.items()}
        for key, seeds in outcomes.items()
    }
    notes = make_report("table5", "title", found, changed, []).notes
    said = [text for text in notes if text.startswith("Training images")]
    assert len(said) == (note is not None)
    assert all(text.startswith(str(note)) for text in said)
