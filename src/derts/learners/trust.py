"""How far a query image's given label is believed beside what the model says.

For labels that are swapped inside every task, so that no task can be dropped for it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 50  # of the probability of the given label
TAIL = 0.02  # share of wrong labels that a tail must hold to say anything
LEAST_NOISE = 0.1  # less looks the same as a few hard images
MOST_NOISE = 0.7  # of labels: more, and the model cannot tell right from wrong yet


class Trust:
    """Soft targets for the outer loss, once `noise`, the share of wrong labels, is known.

    >>> trust = Trust(torch.device("cpu"))
    >>> logits, labels = torch.tensor([[0.0, 2.0, 0.0]]), torch.tensor([0])
    >>> trust.targets(logits, labels)
    tensor([[1., 0., 0.]])
    >>> trust.noise.fill_(0.4)
    tensor(0.4000)
    >>> trust.targets(logits, labels)
    tensor([[0.2634, 0.6488, 0.0878]])
    """

    def __init__(self, device: torch.device) -> None:
        self.noise = torch.zeros((), device=device)

    def targets(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Logits [..., way], given labels [...] -> probabilities of the true labels, no graph.

        A label is right with probability 1 − noise, else any other is equally likely; the model's
        probabilities decide between them.
        """
        way = logits.shape[-1]
        given = F.one_hot(labels, way).to(logits.dtype)
        other = self.noise.to(logits.dtype) / (way - 1)
        prior = given * (1 - other * way) + other
        weighted = prior * logits.detach().softmax(-1)
        return weighted / weighted.sum(-1, keepdim=True).clamp(min=1e-30)


def share_of_wrong_labels(probabilities: Tensor, labels: Tensor) -> float:
    """Estimated share of given labels [...] that are wrong; 0 where it cannot be told.

    probabilities [..., way] are the model's after adaptation. Those of the labels that were not
    given show what a wrong label looks like: among the least probable labels, where right ones are
    rare, given ones are as frequent as the wrong ones among them. Hardly any, or nearly all, count
    as none: a few hard images, or a model that knows nothing yet.

    >>> random = torch.Generator().manual_seed(0)
    >>> true = torch.randint(5, (20000,), generator=random)
    >>> scores = torch.randn(20000, 5, generator=random)
    >>> scores[torch.arange(20000), true] += 3
    >>> given = torch.where(torch.rand(20000, generator=random) < 0.4, (true + 1) % 5, true)
    >>> 0.35 < share_of_wrong_labels(scores.softmax(-1), given) < 0.45
    True
    >>> share_of_wrong_labels(scores.softmax(-1), true)
    0.0
    """
    way = probabilities.shape[-1]
    flat, chosen = probabilities.reshape(-1, way), labels.reshape(-1, 1)
    bins = (flat * BINS).long().clamp_(0, BINS - 1)
    given = torch.bincount(bins.gather(1, chosen)[:, 0], minlength=BINS)
    other = torch.bincount(bins.flatten(), minlength=BINS) - given
    below_given = given.cumsum(0).double().cpu() / given.sum().clamp(min=1).cpu()
    below_other = other.cumsum(0).double().cpu() / other.sum().clamp(min=1).cpu()
    tails = below_other >= TAIL
    if not bool(tails.any()):
        return 0.0
    # below = (1 − ν) right + ν wrong for given labels; others are wrong but for ν / (way − 1)
    ratio = float((below_given[tails] / below_other[tails]).min())
    noise = ratio / (1 + ratio / (way - 1))
    return noise if LEAST_NOISE <= noise <= MOST_NOISE else 0.0
