"""What was measured in each cell, and one small JSON file per table that holds it."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from derts.errors import DertsError
from derts.files import write_atomically
from derts.paper.recipe import NAMES, Cell, Setting, cells, with_references
from derts.paper.scale import Scale


@dataclass(frozen=True)
class Outcome:
    """One cell with one seed: right answers of each test task, and how they were come by."""

    seed: int
    updates: int
    correct: tuple[int, ...]
    questions: int
    seconds_per_update: float | None
    seconds: float
    machine: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    chosen_update: int | None = None
    """Where the weights are not the last ones: the update they are of."""
    random_share: float | None = None
    """Share of the updates after the warm-up in which there was nothing to choose."""

    @property
    def weights_of_update(self) -> int:
        """The update whose weights were evaluated."""
        return self.updates if self.chosen_update is None else self.chosen_update

    @property
    def judged_by_best(self) -> bool:
        """Whether weights were chosen on validation classes."""
        best: bool = self.config.get("evaluation", {}).get("weights") == "best"
        return best

    @property
    def seen_anew(self) -> str:
        """How training images differed from update to update, in words; nothing if they did not."""
        augment = self.config.get("augment", {})
        shift = augment.get("shift", 0)
        ways = ["mirrored"] if augment.get("mirror") else []
        ways += [f"moved by up to {shift} pixels"] if shift else []
        return " and ".join(ways)

    @property
    def turned(self) -> bool:
        """Whether every training class was four."""
        found: bool = self.config.get("tasks", {}).get("turned", False)
        return found

    @property
    def measured_on(self) -> str:
        """The machine, and the precision where it is not the usual one."""
        name = str(self.machine.get("accelerator", self.machine.get("processor")))
        precision = self.config.get("hardware", {}).get("precision", "float32")
        return name if precision == "float32" else f"{name}, in {precision}"

    @property
    def accuracy(self) -> float:
        """Mean over test tasks, percent."""
        return 100 * sum(self.correct) / (self.questions * len(self.correct))

    def value(self, metric: str) -> float | None:
        """The number that a table shows."""
        return self.accuracy if metric == "accuracy" else self.seconds_per_update


Key = tuple[Setting, float]
Outcomes = dict[Key, dict[int, Outcome]]
"""By setting and share of training, then by seed."""


def result_file(folder: Path, name: str, scale: Scale) -> Path:
    """Where a table's results are kept as JSON."""
    return folder / f"reproduce-{name}{scale.suffix}.json"


def save_outcomes(
    path: Path, name: str, found: Sequence[Cell], outcomes: Outcomes, notes: Sequence[str]
) -> None:
    """Write a table's results: configs once, and per cell and seed one array of right answers."""
    configs: dict[str, Any] = {}
    makers: dict[str, Any] = {}
    rows = []
    for cell in found:
        for seed, outcome in sorted(outcomes.get((cell.setting, cell.fraction), {}).items()):
            rows.append(
                {
                    "cell": cell.label,
                    "seed": seed,
                    "updates": outcome.updates,
                    "weights_of_update": outcome.weights_of_update,
                    "config": _share(configs, {**outcome.config, "seed": "as in the row"}),
                    "maker": _share(
                        makers, {"code": dict(outcome.code), "machine": dict(outcome.machine)}
                    ),
                    "seconds_per_update": outcome.seconds_per_update,
                    "seconds_with_evaluation": round(outcome.seconds, 6),
                    "questions": outcome.questions,
                    **_told("random_share", outcome.random_share),
                    "correct": list(outcome.correct),
                }
            )
    head = {"table": name, "notes": list(notes), "configs": configs, "makers": makers}
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    text = f'{json.dumps(head, separators=(",", ":"))[:-1]},\n"rows":[\n{lines}\n]}}\n'
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())


def _told(name: str, value: float | None) -> dict[str, float]:
    return {} if value is None else {name: round(value, 4)}


def _share(kept: dict[str, Any], value: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]
    kept[digest] = value
    return digest


def keep_what_is_lost(file: Path, outcomes: Outcomes) -> list[Path]:
    """Before a result file is written anew: a copy, if it has results that the new one has not.

    They may be the only trace of runs that are gone, or of an earlier recipe.
    """
    try:
        old = load_outcomes(file)[1]
    except DertsError:
        return []  # not there, or damaged
    new = {(key, seed): one for key, seeds in outcomes.items() for seed, one in seeds.items()}
    before = {(key, seed): one for key, seeds in old.items() for seed, one in seeds.items()}
    if all(run in new and new[run].correct == one.correct for run, one in before.items()):
        return []
    numbers = (f"-{number}" if number else "" for number in itertools.count())
    names = (file.with_name(f"earlier-{file.stem}{number}.json") for number in numbers)
    copy = next(name for name in names if not name.exists())
    write_atomically(copy, file.read_bytes())
    return [copy]


def load_outcomes(path: Path) -> tuple[str, Outcomes, list[str]]:
    """What `save_outcomes` wrote: the table's name, its outcomes and notes."""
    outcomes: Outcomes = {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        name = content["table"]
        if name not in NAMES:
            raise ValueError(f"no table is called {name!r}")
        cell_of = {cell.label: cell for cell in with_references(cells(name))}
        for row in content["rows"]:
            cell = cell_of.get(row["cell"])
            if cell is not None:  # else of a recipe that has changed since
                config = {**content["configs"][row["config"]], "seed": row["seed"]}
                outcome = _outcome(row, config, content["makers"][row["maker"]])
                outcomes.setdefault((cell.setting, cell.fraction), {})[row["seed"]] = outcome
        return name, outcomes, [str(note) for note in content["notes"]]
    except FileNotFoundError:
        raise DertsError(
            f"no results at {path}: run derts reproduce first, or leave out --from"
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DertsError(
            f"{path} is not a result file of derts reproduce, or is damaged "
            f"({type(error).__name__}: {error}): write it again"
        ) from None


def _outcome(row: dict[str, Any], config: dict[str, Any], maker: dict[str, Any]) -> Outcome:
    """A row of a file; a ValueError where it cannot be one."""
    correct, questions = row["correct"], row["questions"]
    seconds, each = row["seconds_with_evaluation"], row["seconds_per_update"]
    share = row.get("random_share", row.get("random_rounds"))
    chosen = row.get("weights_of_update")
    whole = [row["seed"], row["updates"], questions, *([] if chosen is None else [chosen])]
    real = [seconds, *(value for value in (each, share) if value is not None)]
    sound = isinstance(correct, list) and all(type(number) is int for number in whole)
    sound = sound and min(row["updates"], questions, len(correct)) > 0
    sound = sound and all(type(right) is int and 0 <= right <= questions for right in correct)
    sound = sound and all(type(value) in (int, float) and 0 <= value < math.inf for value in real)
    if not sound or not all(isinstance(maker[of], dict) for of in ("code", "machine")):
        raise ValueError(f"the row of {row['cell']!r} has impossible values")
    return Outcome(
        row["seed"], row["updates"], tuple(correct), questions, each, seconds,
        maker["machine"], config, maker["code"], chosen, share,
    )  # fmt: skip
