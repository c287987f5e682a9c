"""Stage 6: who trains next, and how much."""

from __future__ import annotations

from collections.abc import Callable

from derts.config import StrategyConfig
from derts.selection.derts import DertsTasks
from derts.selection.facility_location import Selection, select
from derts.selection.random import RandomTasks
from derts.selection.strategy import Context, MetaBatch, Strategy

__all__ = [
    "Context",
    "DertsTasks",
    "MetaBatch",
    "RandomTasks",
    "Selection",
    "Strategy",
    "build_strategy",
    "select",
]

STRATEGIES: dict[str, Callable[[StrategyConfig], Strategy]] = {
    "random": lambda config: RandomTasks(),
    "derts": DertsTasks,
}
"""Every strategy by name: a new one is a file and a line here."""


def build_strategy(config: StrategyConfig) -> Strategy:
    """The strategy that a config names.

    >>> type(build_strategy(StrategyConfig(name="derts"))).__name__
    'DertsTasks'
    """
    return STRATEGIES[config.name](config)
