"""Stage 6: who trains next, and how much."""

from __future__ import annotations

from collections.abc import Callable

from derts.config import StrategyConfig
from derts.facility_location import Selection, select
from derts.selection.ats import AdaptiveScheduler
from derts.selection.by_loss import easiest_tasks, hardest_tasks
from derts.selection.derts import derts_tasks
from derts.selection.gradmatch import gradmatch_tasks
from derts.selection.random import RandomTasks
from derts.selection.rounds import PoolTasks
from derts.selection.strategy import Context, MetaBatch, Strategy
from derts.selection.us import UniformDifficulty

__all__ = [
    "AdaptiveScheduler",
    "Context",
    "MetaBatch",
    "PoolTasks",
    "RandomTasks",
    "Selection",
    "Strategy",
    "UniformDifficulty",
    "build_strategy",
    "select",
]

STRATEGIES: dict[str, Callable[[StrategyConfig], Strategy]] = {
    "random": lambda config: RandomTasks(),
    "derts": derts_tasks,
    "us": UniformDifficulty,
    "ats": AdaptiveScheduler,
    "gradmatch": gradmatch_tasks,
    "hardest": hardest_tasks,
    "easiest": easiest_tasks,
}
"""Every strategy by name: a new one is a file and a line here."""


def build_strategy(config: StrategyConfig) -> Strategy:
    """The strategy that a config names.

    >>> type(build_strategy(StrategyConfig(name="derts"))).__name__
    'PoolTasks'
    """
    return STRATEGIES[config.name](config)
