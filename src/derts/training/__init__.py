"""Stage 9: the loop, from a config to a run folder."""

from derts.training.run import resume, train
from derts.training.trainer import Trainer

__all__ = ["Trainer", "resume", "train"]
