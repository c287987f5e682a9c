"""ATS, the adaptive task scheduler (Yao et al., NeurIPS 2021): a small network picks the tasks."""

from derts.selection.ats.strategy import AdaptiveScheduler

__all__ = ["AdaptiveScheduler"]
