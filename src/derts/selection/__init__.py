"""Stage 8: who trains next, and how much.

derts        the method, top to bottom: read this first
noisy_tasks  its drop
redundancy   its balancing, and whether selecting pays
rounds       draw a pool, choose, train on the choice: what all that work so share (round_record)
strategy     the contract, which training/trainer.py asks for every batch
baselines, us, ats, gradmatch   what derts is compared with
"""

from collections.abc import Callable

from derts.config import StrategyConfig
from derts.selection.ats import AdaptiveScheduler
from derts.selection.baselines import ByLoss, RandomTasks, RandomVotes
from derts.selection.derts import Derts
from derts.selection.gradmatch import GradMatch
from derts.selection.rounds import PoolStrategy
from derts.selection.strategy import Context, MetaBatch, Strategy
from derts.selection.us import UniformDifficulty

__all__ = [
    "AdaptiveScheduler", "ByLoss", "Context", "Derts", "GradMatch", "MetaBatch", "PoolStrategy",
    "RandomTasks", "RandomVotes", "Strategy", "UniformDifficulty", "build_strategy",
]  # fmt: skip

STRATEGIES: dict[str, Callable[[StrategyConfig], Strategy]] = {
    "random": lambda config: RandomTasks(),
    "random-votes": RandomVotes,
    "derts": Derts,
    "us": UniformDifficulty,
    "ats": AdaptiveScheduler,
    "gradmatch": GradMatch,
    "hardest": ByLoss,
    "easiest": ByLoss,
}
"""Every strategy by name: a new one is a file and a line here."""


def build_strategy(config: StrategyConfig) -> Strategy:
    """The strategy that a config names.

    >>> type(build_strategy(StrategyConfig(name="derts"))).__name__
    'Derts'
    """
    return STRATEGIES[config.name](config)
