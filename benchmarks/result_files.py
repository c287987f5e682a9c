"""Result files, and tables made of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from derts.report.tables import markdown_table
from derts.statistics import Estimate, over_seeds, student, student_inside

RESULTS = Path(__file__).parent.parent / "results"
NOT_RUN = "not run"
Rows = list[tuple[str, ...]]
Differences = list[float]
"""Ours − theirs, one number for each seed."""
Cell = str | Differences


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

    def minus(self, other: Scores) -> Differences:
        """The differences over the seeds that both have."""
        both = sorted(self.by_seed.keys() & other.by_seed.keys())
        return [self.by_seed[seed] - other.by_seed[seed] for seed in both]


def compared(name: str) -> dict[tuple[str, str], Scores]:
    """A file of noisy_tasks.py: scores by learner and variant."""
    found: dict[tuple[str, str], Scores] = {}
    for run in read(name)["runs"]:
        key = run["config"]["learner"]["name"], run["variant"]
        found.setdefault(key, Scores()).add(run["seed"], run["accuracy"], run["code"])
    return found


def table(rows: Iterable[Sequence[Cell]], shown: Callable[[str], bool] = bool) -> str:
    """Rows as Markdown; a list of differences by seed is told as text, corrected for all of them.

    `shown` tells by a row's first cell whether it is printed; all rows count as comparisons.
    """
    first, *rows = rows
    texts = iter(differences([cell for row in rows for cell in row if isinstance(cell, list)]))
    told = [tuple(next(texts) if isinstance(cell, list) else cell for cell in row) for row in rows]
    return markdown_table([tuple(map(str, first)), *(row for row in told if shown(f"{row[0]} "))])


def differences(gains: list[Differences]) -> list[str]:
    """The comparisons of a table, each by its differences per seed, as text.

    Mean ± half of its 95% interval, and in brackets that half after Holm's correction for all of
    them; bold where the corrected interval leaves out 0. "0": the same runs, to the last answer.

    >>> differences([[2.0, 2.1, 2.2], [0.0, 0.0, 0.0], [], [1.5], [1.0, -2.0, 3.0]])
    ['**+2.10 ± 0.25 (0.36)**', '0', '', '+1.50', '+0.67 ± 6.25 (6.25)']
    """
    compared = [values for values in gains if len(values) > 1 and any(values)]
    corrected = iter(holm(compared))
    told = []
    for values in gains:
        if not any(values):
            told.append("0" if values else "")
            continue
        text = over_seeds(values).shown("+")
        if len(values) > 1:
            half = next(corrected).interval
            text += f" ({half:.2f})"
            text = f"**{text}**" if abs(over_seeds(values).mean) > half else text
        told.append(text)
    return told


def holm(samples: list[Differences], level: float = 0.05) -> list[Estimate]:
    """Intervals of many comparisons' differences by seed, after Holm, in the order given.

    Of m comparisons the clearest has an interval at level/m, the next at level/(m − 1), and so on
    up to the first that holds 0, whose level is that of all others.

    >>> [str(one) for one in holm([[1.0, 2.0, 3.0], [8.0, 8.1, 8.2]])]
    ['2.00 ± 2.48', '8.10 ± 0.36']
    """
    alone = [over_seeds(values) for values in samples]
    order = sorted(
        (one for one in range(len(samples)) if not math.isnan(alone[one].interval)),
        key=lambda one: -_clearness(samples[one]),
    )
    found, parts = list(alone), len(order)
    for one in order:
        found[one] = over_seeds(samples[one], level / parts)
        if abs(found[one].mean) > found[one].interval:
            parts -= 1
    return found


def _clearness(values: list[float]) -> float:
    """The chance of a smaller |t| were there no difference."""
    one, count = over_seeds(values), len(values)
    if one.interval == 0:
        return float(one.mean != 0)
    return student_inside(abs(one.mean) / one.interval * student(0.05, count - 1), count - 1)
