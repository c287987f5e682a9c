"""Stage 6: how far can each label be trusted?"""

from derts.labels.votes import majority_vote, relabel_by_votes

__all__ = ["majority_vote", "relabel_by_votes"]
