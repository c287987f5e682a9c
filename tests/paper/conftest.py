"""Runs of the grid that take a fraction of a second."""

from pathlib import Path
from typing import Any

import pytest

from derts.paper.cells import cells, keep_only, read_recipe
from derts.paper.runs import GridRun, Scale, make_runs, parse_datasets

TINY: dict[str, Any] = {
    "meta_batch": 2,
    "tasks": {"query": 3},
    "model": {"width": 2},
    "augment": {"horizontal_flip": False, "translation": 0},
    "learner": {"distance_divisor": 4.0},
    "strategy": {"pool": 8},
    "evaluation": {"tasks": 4, "query": 2},
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Glyphs in place of ImageNet, smaller still than the recipes make them."""
    monkeypatch.setitem(read_recipe("common"), "glyphs", TINY)


@pytest.fixture
def protonet_runs(tiny: None, tmp_path: Path) -> list[GridRun]:
    """Random, paper and derts of table 1, ten updates each, warm-up of none, one seed."""
    only = ["dataset=mini", "shot=5", "learner=protonet", "strategy=random,strategy=derts"]
    found = keep_only(cells("table1"), [*only, "strategy=paper"])
    return make_runs(found, [0], Scale(parse_datasets(["glyphs"]), 0.001), tmp_path)
