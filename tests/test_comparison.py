"""Runs side by side, with and without seeds in common."""

from pathlib import Path
from typing import Any

import pytest

from derts.cli import run
from derts.report.read import Comparison
from tests.tiny import TINY_WORDS


def result(variant: str, seed: int, accuracy: float) -> dict[str, Any]:
    numbers = {"noise": {"kept": None}, "seconds_per_update": 0.001, "selection_share": 0.1}
    return {"variant": variant, "seed": seed, "accuracy": accuracy, **numbers}


def test_differences_are_paired_over_the_seeds_that_both_have() -> None:
    found = Comparison([result("random", 0, 50), result("random", 1, 60), result("derts", 1, 63)])
    assert found.difference("derts", "random") == "+3.00"
    assert found.table()[2][1:3] == ("63.00", "+3.00")


def test_no_seed_in_common_is_said_in_one_line() -> None:
    found = Comparison([result("random", 0, 50), result("random", 1, 60), result("derts", 7, 63)])
    assert found.table()[2][2] == "no seed in common: 7 against 0, 1"


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
