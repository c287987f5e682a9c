"""Cells: every number of the paper, the strategies beside them, what can be asked for."""

from collections import Counter
from typing import Any

import pytest

from derts.errors import DertsError
from derts.paper.cells import NAMES, Cell, cells, chosen_names, keep_only, read_json, read_recipe
from derts.paper.runs import parse_datasets

TABLES = {name: read_recipe(name)["paper"] for name in NAMES if name.startswith("table")}
OURS = {"random": ["random"], "us": ["us"], "ats": ["ats"], "derts": ["paper", "derts"]}


def theirs(row: dict[str, Any], strategy: str) -> tuple[Any, ...]:
    whole = row["dataset"] == "tiered-imagenet" or row["classes"] == 64
    return (
        row["dataset"], row["way"], row["shot"], row["backbone"], row["learner"], strategy,
        0 if whole else row["classes"], row["noise"], row["iterations"], row.get("ratio", 0.3),
        row.get("weights", True), row["accuracy"], row["ci95"],
    )  # fmt: skip


def ours(cell: Cell) -> tuple[Any, ...]:
    setting = cell.setting
    return (
        setting.dataset, setting.way, setting.shot, setting.backbone, setting.learner,
        setting.strategy, setting.classes, setting.noise, cell.updates,
        setting.ratio, setting.weights, cell.paper, cell.paper_interval,
    )  # fmt: skip


def test_there_is_a_recipe_for_every_table_of_the_paper() -> None:
    assert sorted(TABLES.values()) == sorted(read_json("paper.json")["tables"])


@pytest.mark.parametrize("name", [name for name in TABLES if name != "table2"])
def test_every_accuracy_of_the_paper_is_one_cell_of_each_of_our_strategies(name: str) -> None:
    rows = read_json("paper.json")["tables"][TABLES[name]]["cells"]
    expected = Counter(theirs(row, own) for row in rows for own in OURS[row["strategy"]])
    found = Counter(ours(cell) for cell in cells(name) if cell.paper is not None)
    assert found == expected
    assert set(found.values()) == {1}


def test_every_time_of_the_paper_is_one_cell_of_each_of_our_strategies() -> None:
    rows = read_json("paper.json")["tables"]["table2_time"]["cells"]
    expected = [
        (own, row["seconds_per_iteration"]) for row in rows for own in OURS[row["strategy"]]
    ]
    assert sorted((cell.setting.strategy, cell.paper) for cell in cells("table2")) == sorted(
        expected
    )


def test_what_is_not_in_the_paper_is_votes_and_table_4_along_the_way() -> None:
    for cell in (cell for name in TABLES for cell in cells(name) if cell.paper is None):
        assert cell.setting.strategy == "random-votes" or (cell.table, cell.fraction < 1) == (
            "table4",
            True,
        )


@pytest.mark.parametrize("name", NAMES)
def test_random_with_votes_is_beside_derts_wherever_labels_are_noisy(name: str) -> None:
    by_strategy = {
        strategy: {
            (cell.setting.of("random"), cell.fraction)
            for cell in cells(name)
            if cell.setting.strategy == strategy
        }
        for strategy in ("derts", "random-votes")
    }
    noisy = {(setting, at) for setting, at in by_strategy["derts"] if setting.noise}
    assert by_strategy["random-votes"] == noisy


def test_cells_are_picked_by_weights_and_by_all_classes() -> None:
    bare = keep_only(cells("table5"), ["weights=no"])
    assert {cell.setting.variant for cell in bare} == {"no weights"}
    every = cells("table1")
    for word in ("all", "64", "0"):
        assert keep_only(every, [f"classes={word}"]) == every
    with pytest.raises(DertsError, match="classes is 16"):
        keep_only(cells("table3"), ["classes=64"])


@pytest.mark.parametrize(
    ("word", "said"),
    [("learner", "key=value"), ("colour=red", "key=value"), ("shot=7", "shot is 1 or 5")],
)
def test_filters_that_make_no_sense(word: str, said: str) -> None:
    with pytest.raises(DertsError, match=said):
        keep_only(cells("table1"), [word])


def test_names_that_make_no_sense() -> None:
    assert chosen_names(["all"]) == NAMES
    with pytest.raises(DertsError, match="did you mean table4"):
        chosen_names(["tabel4"])
    with pytest.raises(DertsError, match="nothing to reproduce"):
        chosen_names([])
    for words in (["mini"], ["mini=a", "glyphs"], ["omniglot=x"]):
        with pytest.raises(DertsError, match="--dataset"):
            parse_datasets(words)
