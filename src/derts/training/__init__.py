"""Stage 7: the loop, from a config to a run folder."""

from derts.training.loop import Trainer
from derts.training.run import train

__all__ = ["Trainer", "train"]
