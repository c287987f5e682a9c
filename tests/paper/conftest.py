"""Runs of the grid that take a fraction of a second."""

from pathlib import Path
from typing import Any

import pytest

from derts.paper.job import Folders, Job, make_jobs
from derts.paper.recipe import cells, keep_only, read_recipe
from derts.paper.scale import Scale, parse_datasets

TINY: dict[str, Any] = {
    "meta_batch": 2,
    "tasks": {"query": 3, "turned": False},
    "model": {"width": 2},
    "learner": {"distance_divisor": 4.0},
    "strategy": {"pool": 8},
    "evaluation": {"tasks": 4, "query": 2},
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Glyphs in place of ImageNet, smaller still than the recipes make them."""
    monkeypatch.setitem(read_recipe("common"), "glyphs", TINY)


@pytest.fixture
def protonet_jobs(tiny: None, tmp_path: Path) -> list[Job]:
    """Random, paper and derts of table 1, ten updates each, warm-up of two, one seed."""
    only = ["dataset=mini", "shot=5", "learner=protonet", "strategy=random,strategy=derts"]
    found = keep_only(cells("table1"), [*only, "strategy=paper"])
    scale = Scale(parse_datasets(["glyphs"]), 0.001)
    jobs = make_jobs(found, [0], scale, Folders(tmp_path))
    return list(jobs.values())
