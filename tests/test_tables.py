"""The tables of README.md and docs/ are what results/ say, and say whose numbers they are."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from derts.paper.report import COLUMNS

ROOT = Path(__file__).parent.parent
KINDS = ("accuracy", "paper", "speed", "strategy")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tables

    yield tables
    for name in ("tables", "result_files", *(f"{kind}_tables" for kind in KINDS)):
        sys.modules.pop(name, None)


def test_pages_are_what_the_result_files_say(tables: Any) -> None:
    placed = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert tables.renewed(text) == text, f"{page.name}: run python benchmarks/tables.py"
        placed |= {found[2] for found in tables.BLOCK.finditer(text)}
    assert placed == set(tables.BLOCKS)


def test_tables_of_derts_show_which_part_wins(tables: Any) -> None:
    for page in (ROOT / "README.md", ROOT / "docs" / "results.md"):
        headings = re.findall(r"^\|(.*)\n\| ?---", page.read_text(encoding="utf-8"), re.M)
        with_derts = [head for head in headings if re.search(r"\| ?derts ?\|", head)]
        assert with_derts
        for heading in with_derts:
            names = [name.strip() for name in heading.split("|")]
            assert {"random", "random + votes", "the paper's rule", "derts"} <= set(names)
    assert list(COLUMNS.values())[:4] == ["random", "random + votes", "the paper's rule", "derts"]


def test_readmes_table_is_short(tables: Any) -> None:
    rows = [line for line in tables.accuracy.readme().splitlines() if line.startswith("|")]
    assert 2 + 4 <= len(rows) <= 2 + 8


def test_runs_by_code_of_no_commit_are_marked(tables: Any) -> None:
    files = sys.modules["result_files"]
    known = next(iter(files.read("digests.json")))
    assert files.mark({"source": known}) == ""
    assert files.mark({"source": "0" * 16}) == " °"
    assert files.mark({"source": "0" * 16, "dirty": False}) == ""


def test_runs_by_another_recipe_are_named(tables: Any) -> None:
    paper = tables.paper
    name = "reproduce-table1-x0.3-augment"
    _, found, notes = paper.load_results(ROOT / "results" / f"{name}.json")
    earlier = "By an earlier recipe: derts with no `--strategy.balance`."
    assert paper._other_recipe(found, notes) == earlier
    plain = [note.replace("gpu, augment", "gpu") for note in notes]
    told = paper._other_recipe(found, plain)
    assert "random with `--augment.horizontal-flip`, `--augment.translation 8`;" in told
    command = paper._command(Path(f"{name}.json"), "table1", found, notes)
    assert (
        "--preset gpu augment --updates-scale 0.3 --only strategy=random,strategy=derts" in command
    )


def test_holm_widens_intervals_by_rank_and_stops_at_the_first_that_holds_zero(tables: Any) -> None:
    holm = sys.modules["result_files"].holm
    random = np.random.default_rng(0)
    samples = [(random.normal(mean, 1, 4)).tolist() for mean in (0.2, 30, 9, 0.1)]
    p = [float(stats.ttest_1samp(values, 0).pvalue) for values in samples]
    assert sorted(range(4), key=p.__getitem__)[:2] == [1, 2]
    for one, parts in ((1, 4), (2, 3), (0, 2), (3, 2)):
        expected = stats.t.ppf(1 - 0.05 / parts / 2, 3) * stats.sem(samples[one])
        assert holm(samples)[one].interval == pytest.approx(expected, rel=1e-6)


def test_differences_are_corrected_for_all_of_a_table(tables: Any) -> None:
    clear, unclear, same = [2.0, 2.1, 2.2], [1.0, -2.0, 3.0], [0.0, 0.0, 0.0]
    rows = [("a", clear), ("b", same), ("c", []), ("d", [1.5]), ("e", unclear)]
    lines = sys.modules["result_files"].table([("", "ours − theirs"), *rows]).splitlines()[2:]
    told = [line.split("|")[2].strip() for line in lines]
    assert told == ["**+2.10 ± 0.25 (0.36)**", "0", "", "+1.50", "+0.67 ± 6.25 (6.25)"]


def test_coverage_counts_the_papers_accuracies(
    tables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper = tables.paper
    given = json.loads((ROOT / "src" / "derts" / "paper" / "paper.json").read_text())["tables"]
    whole = {name.partition("_")[0]: len(one["cells"]) for name, one in given.items()}

    def rows() -> dict[str, list[str]]:
        lines = [
            [part.strip() for part in line.split("|")] for line in paper.coverage().split("\n")
        ]
        return {line[1]: line[2:6] for line in lines[2:]}

    assert {name: int(row[0]) for name, row in rows().items()} == {
        **{name: count for name, count in whole.items() if name != "table2"},
        "all": 173,
    }
    first, second = paper.cells("table5")[:2]
    made = [paper.CellResult(0, updates, (1,), 1, None, 0.0) for updates in (10_000, 1000)]
    found = {first.key: {0: made[0]}, second.key: {0: made[1]}}
    # the paper's rule and derts are the same DERTS of the paper
    found[first.setting.of("derts"), 1.0] = {0: made[1]}
    monkeypatch.setattr(paper, "_files", lambda: [Path("reproduce-table5.json")])
    monkeypatch.setattr(paper, "load_results", lambda file: ("table5", found, []))
    assert rows()["table5"] == ["5", "1", "1", "3"]
    assert rows()["table3"] == ["14", "0", "0", "14"]
