"""Stage 6: how far can each label be trusted?"""

from derts.labels.prototypes import label_trust
from derts.labels.trust import Trust
from derts.labels.votes import majority_vote, relabel_by_votes

__all__ = ["Trust", "label_trust", "majority_vote", "relabel_by_votes"]
