"""Runs side by side, with and without seeds in common."""

from pathlib import Path
from typing import Any

import pytest

from derts.cli import run
from derts.report.read import comparison_table
from tests.tiny import TINY_WORDS


def results(accuracies: dict[int, float]) -> list[dict[str, Any]]:
    numbers = {"noise": {"kept": None}, "seconds_per_update": 0.001, "selection_share": 0.1}
    return [{"seed": seed, "accuracy": value, **numbers} for seed, value in accuracies.items()]


def test_differences_are_paired_over_the_seeds_that_both_have() -> None:
    found = comparison_table({"random": results({0: 50, 1: 60}), "derts": results({1: 63})})
    assert found[2][1:3] == ("63.00", "+3.00")


def test_no_seed_in_common_is_said_in_one_line() -> None:
    found = comparison_table({"random": results({0: 50, 1: 60}), "derts": results({7: 63})})
    assert found[2][2] == "no seed in common: 7 against 0, 1"


def test_compare_and_report_take_runs_without_a_seed_in_common(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed in (("random", "0"), ("derts", "1")):
        words = ["train", *TINY_WORDS, "--strategy.name", name, "--seed", seed, "--updates", "4"]
        assert run([*words, "--out", name]) == 0
    capsys.readouterr()
    assert run(["compare", "random", "derts"]) == 0
    assert "no seed in common: 1 against 0" in capsys.readouterr().out
    assert run(["report", "random", "derts", "-o", "report.html"]) == 0
    assert "no seed in common: 1 against 0" in (in_folder / "report.html").read_text()
