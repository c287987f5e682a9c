"""Result files, and tables made of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from derts.statistics import over_seeds

RESULTS = Path(__file__).parent.parent / "results"
NOT_RUN = "not run"
Rows = list[tuple[str, ...]]


@cache
def read(name: str) -> dict[str, Any]:
    """A result file."""
    content: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return content


def mark(code: Any) -> str:
    """What stands behind a number whose code no commit holds: changed, and not in digests.json."""
    committed = code.get("dirty") is False or code["source"] in read("digests.json")
    return "" if committed else " °"


@dataclass
class Scores:
    """Accuracy by seed of runs that differ in nothing else; nothing where they were not run."""

    by_seed: dict[int, float] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)

    def add(self, seed: int, accuracy: float, code: Any) -> None:
        self.by_seed[seed] = accuracy
        self.marks.add(mark(code))

    def __bool__(self) -> bool:
        return bool(self.by_seed)

    @property
    def mean(self) -> float:
        return over_seeds(list(self.by_seed.values())).mean

    def shown(self, interval: bool = True) -> str:
        """Mean, interval and mark, or that it was not run."""
        if not self:
            return NOT_RUN
        text = over_seeds(list(self.by_seed.values())).shown() if interval else f"{self.mean:.2f}"
        return text + "".join(sorted(self.marks))

    def minus(self, other: Scores) -> str:
        """The paired difference, over the seeds that both have."""
        gains = self.gains(other)
        return over_seeds(gains).shown("+") if gains else ""

    def gains(self, other: Scores) -> list[float]:
        """The differences, by seed."""
        both = sorted(self.by_seed.keys() & other.by_seed.keys())
        return [self.by_seed[seed] - other.by_seed[seed] for seed in both]


def compared(name: str) -> dict[tuple[str, str], Scores]:
    """A file of `derts.comparison`: scores by learner and variant."""
    found: dict[tuple[str, str], Scores] = {}
    for run in read(name)["runs"]:
        key = run["config"]["learner"]["name"], run["variant"]
        found.setdefault(key, Scores()).add(run["seed"], run["accuracy"], run["code"])
    return found
