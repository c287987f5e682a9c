"""Stage 7: the loop, from a config to a run folder."""

from derts.training.loop import Trainer
from derts.training.run import resume, train

__all__ = ["Trainer", "resume", "train"]
