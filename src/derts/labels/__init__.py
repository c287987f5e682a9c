"""Stage 6: how far can each label be trusted?

votes         labels drawn wrong anew in each task: a pool -> a relabelled pool, in every round
prototypes    labels wrong in the data set: features -> Trust (trust), by a model (mixture)
judging       a data set -> features -> that trust: for training/label_looks.py while a run trains,
              for cleaning (`derts clean`) and report/review.py (`derts inspect`)
known_errors  data made wrong on purpose, and scores against it
"""

from derts.labels.prototypes import label_trust
from derts.labels.trust import Trust
from derts.labels.votes import majority_vote, relabel_by_votes

__all__ = ["Trust", "label_trust", "majority_vote", "relabel_by_votes"]
