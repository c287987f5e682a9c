"""The paper's tables as cells: the paper's own numbers, and recipes that expand into settings."""

from __future__ import annotations

import difflib
import itertools
import json
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from importlib import resources
from typing import Any

from derts.errors import DertsError

FILES = resources.files("derts.paper")
NAMES = (*(f"table{number}" for number in range(1, 9)), "figure2", "case-study")
"""What can be reproduced."""
FILTERS = (
    "dataset", "shot", "learner", "strategy", "backbone", "classes", "noise", "ratio", "weights",
    "fraction",
)  # fmt: skip
SHORT_NAMES = {"mini": "mini-imagenet", "tiered": "tiered-imagenet"}
USUAL_RATIO = 0.3


@dataclass(frozen=True)
class Setting:
    """One training run but for its seed; `classes` 0: all, `select` "": the strategy's own."""

    dataset: str
    way: int
    shot: int
    backbone: str
    learner: str
    strategy: str
    classes: int
    noise: float
    updates: int
    ratio: float
    weights: bool
    select: str = ""

    @property
    def place(self) -> str:
        """All but learner and strategy, in words."""
        place = f"{self.dataset} {self.way}-way {self.shot}-shot {self.backbone}"
        place += f", {self.classes} classes" if self.classes else ""
        return place + (f", {100 * self.noise:.0f}% noise" if self.noise else "")

    @property
    def variant(self) -> str:
        """What differs from a strategy's usual form, in words."""
        parts = [f"ratio {self.ratio:g}"] if self.ratio != USUAL_RATIO else []
        return ", ".join(parts if self.weights else [*parts, "no weights"])

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.place, self.learner, self.strategy, self.variant)))

    def of(self, strategy: str) -> Setting:
        """The same with another strategy; all but `paper` and `derts` have one form only."""
        if strategy in ("paper", "derts"):
            return replace(self, strategy=strategy)
        return replace(self, strategy=strategy, ratio=USUAL_RATIO, weights=True, select="")


@dataclass(frozen=True)
class Cell:
    """One number of a table: a setting, measured after a share of its updates."""

    table: str
    setting: Setting
    fraction: float
    metric: str
    paper: float | None = None
    paper_interval: float | None = None

    @property
    def label(self) -> str:
        """Tells cells of a table apart."""
        return f"{self.setting}, {100 * self.fraction:g}% of {self.setting.updates}"

    @property
    def key(self) -> tuple[Setting, float]:
        """What tells the results of a cell from others."""
        return self.setting, self.fraction

    @property
    def updates(self) -> int:
        """The recipe's updates up to here."""
        return round(self.fraction * self.setting.updates)


@cache
def read_json(name: str) -> dict[str, Any]:
    """paper.json: tables, set-up and class lists of Zhan & Anderson (2024).

    class_names.json: the 64 training classes of mini-ImageNet in words, by WordNet number.
    """
    found: dict[str, Any] = json.loads((FILES / name).read_text(encoding="utf-8"))
    return found


@cache
def read_recipe(name: str) -> dict[str, Any]:
    return tomllib.loads((FILES / "recipes" / f"{name}.toml").read_text(encoding="utf-8"))


def chosen_names(words: Sequence[str]) -> tuple[str, ...]:
    """The names asked for, `all` written out, each once."""
    if not words:
        raise DertsError(f"nothing to reproduce: name some of {', '.join(NAMES)}, or all")
    for word in words:
        if word not in (*NAMES, "all"):
            near = difflib.get_close_matches(word, NAMES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose from {', '.join(NAMES)}, all"
            raise DertsError(f"nothing is called {word!r}: {hint}")
    found = (NAMES if word == "all" else (word,) for word in words)
    return tuple(dict.fromkeys(itertools.chain(*found)))


@cache
def cells(name: str) -> tuple[Cell, ...]:
    """All cells of a table, figure or study, each with the paper's number where there is one.

    >>> cell = cells("table1")[0]
    >>> str(cell.setting), cell.fraction, cell.paper
    ('mini-imagenet 5-way 5-shot cnn4, anil, random', 0.1, 56.5)
    """
    recipe = read_recipe(name)
    key = "accuracy" if recipe["metric"] == "accuracy" else "seconds_per_iteration"
    theirs = (
        read_json("paper.json")["tables"][recipe["paper"]]["cells"] if "paper" in recipe else []
    )
    grids = [{**read_recipe("common")["grid"], **grid} for grid in recipe["grid"]]
    axes = [[grid[item.name] for item in fields(Setting)] for grid in grids]
    settings = [Setting(*values) for each in axes for values in itertools.product(*each)]
    found = []
    for setting, fraction in itertools.product(settings, recipe["points"]):
        row: dict[str, Any] = next((r for r in theirs if _is_of(r, setting, fraction)), {})
        numbers = row.get(key), row.get("ci95")
        found.append(Cell(name, setting, fraction, recipe["metric"], *numbers))
    return tuple(found)


def _is_of(row: dict[str, Any], setting: Setting, fraction: float) -> bool:
    """Whether a row of paper.json is about a setting; what the row leaves open agrees with all."""
    ours = {
        **asdict(setting),
        "strategy": read_recipe("common")["strategies"][setting.strategy]["of"],
        "fraction_of_training": fraction,
        "classes": setting.classes or 64,
        "iterations": round(fraction * setting.updates),
    }
    return all(row[key] in (None, ours[key]) for key in ours if key in row)


def with_references(found: Sequence[Cell]) -> list[Cell]:
    """Cells, and those of random sampling from which their differences are taken."""
    wanted = {cell.key: cell for cell in found}
    for cell in found:
        random = Cell(cell.table, cell.setting.of("random"), cell.fraction, cell.metric)
        wanted.setdefault(random.key, random)
    return list(wanted.values())


def keep_only(found: Sequence[Cell], words: Sequence[str]) -> tuple[Cell, ...]:
    """The cells that every key=value agrees with; values of one key are alternatives.

    >>> kept = keep_only(cells("table3"), ["learner=anil,strategy=random,strategy=us", "shot=5"])
    >>> [cell.setting.strategy for cell in kept]
    ['random', 'us']
    """
    wanted: dict[str, set[str]] = {}
    for word in (part.strip() for one in words for part in one.split(",")):
        key, _, value = word.partition("=")
        if key not in FILTERS or not value:
            what = f"write key=value, with key one of {', '.join(FILTERS)}"
            raise DertsError(f"--only {word!r} is not understood: {what}")
        choices = {_text(cell, key) for cell in found}
        value = SHORT_NAMES.get(value, value)
        with suppress(ValueError):
            value = f"{float(value):g}"
        value = "all" if (key, value) in (("classes", "0"), ("classes", "64")) else value
        if value not in choices:
            known = f"{key} is {' or '.join(sorted(choices))}"
            raise DertsError(f"--only {key}={value} leaves nothing: {known}")
        wanted.setdefault(key, set()).add(value)
    return tuple(cell for cell in found if all(_text(cell, key) in wanted[key] for key in wanted))


def _text(cell: Cell, key: str) -> str:
    value = cell.fraction if key == "fraction" else getattr(cell.setting, key)
    if key == "weights":
        return "yes" if value else "no"
    if key == "classes" and value == 0:
        return "all"
    return value if isinstance(value, str) else f"{value:g}"
