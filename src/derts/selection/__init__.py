"""Stage 6: who trains next, and how much."""

from __future__ import annotations

from derts.config import StrategyConfig
from derts.selection.random import RandomTasks
from derts.selection.strategy import Context, MetaBatch, Strategy

__all__ = ["Context", "MetaBatch", "RandomTasks", "Strategy", "build_strategy"]


def build_strategy(config: StrategyConfig) -> Strategy:
    """The strategy that a config names."""
    return RandomTasks()
