"""Stage 6: how far can each label be trusted?"""

from derts.labels.votes import relabel_by_votes

__all__ = ["relabel_by_votes"]
