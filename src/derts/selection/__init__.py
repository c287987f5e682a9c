"""Stage 6: who trains next, and how much."""

from __future__ import annotations

from collections.abc import Callable

from derts.config import StrategyConfig
from derts.selection.ats import AdaptiveScheduler
from derts.selection.derts import DertsTasks
from derts.selection.difficulty import EasiestTasks, HardestTasks
from derts.selection.facility_location import Selection, select
from derts.selection.gradmatch import GradMatchTasks
from derts.selection.random import RandomTasks
from derts.selection.strategy import Context, MetaBatch, Strategy
from derts.selection.us import UniformDifficulty

__all__ = [
    "AdaptiveScheduler",
    "Context",
    "DertsTasks",
    "EasiestTasks",
    "GradMatchTasks",
    "HardestTasks",
    "MetaBatch",
    "RandomTasks",
    "Selection",
    "Strategy",
    "UniformDifficulty",
    "build_strategy",
    "select",
]

STRATEGIES: dict[str, Callable[[StrategyConfig], Strategy]] = {
    "random": lambda config: RandomTasks(),
    "derts": DertsTasks,
    "us": UniformDifficulty,
    "ats": AdaptiveScheduler,
    "gradmatch": GradMatchTasks,
    "hardest": HardestTasks,
    "easiest": EasiestTasks,
}
"""Every strategy by name: a new one is a file and a line here."""


def build_strategy(config: StrategyConfig) -> Strategy:
    """The strategy that a config names.

    >>> type(build_strategy(StrategyConfig(name="derts"))).__name__
    'DertsTasks'
    """
    return STRATEGIES[config.name](config)
