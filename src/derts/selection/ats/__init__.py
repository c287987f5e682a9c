"""ATS, the adaptive task scheduler: the strategy, and the network that scores tasks for it."""

from derts.selection.ats.strategy import AdaptiveScheduler

__all__ = ["AdaptiveScheduler"]
