"""How far a query image's label is believed, by the probability that the model gives it.

For labels that are swapped inside every task, so that no task can be dropped for it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BINS = 50  # of the probability of the given label
TAIL = 0.02  # share of wrong labels that a tail must hold to say anything
LEAST_NOISE = 0.15  # less looks the same as a few hard images
MOST_NOISE = 0.7  # of labels: more, and the model cannot tell right from wrong yet

Numbers = NDArray[np.float64]


class Trust:
    """Weight of a query image in the outer loss; all ones until told otherwise.

    >>> trust = Trust(torch.device("cpu"))
    >>> trust.weights(torch.tensor([0.0, 0.4, 1.0]))
    tensor([1., 1., 1.])
    """

    def __init__(self, device: torch.device) -> None:
        self.table = torch.ones(BINS, device=device)

    def weights(self, probabilities: Tensor) -> Tensor:
        """Probabilities of the given labels, any shape -> weights, mean about 1."""
        return self.table[_bins(probabilities)]


def _bins(probabilities: Tensor) -> Tensor:
    return (probabilities * BINS).long().clamp_(0, BINS - 1)


def find_trust(probabilities: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    """Weights by bin [BINS], mean 1 over the given labels, and the share that looks wrong.

    probabilities [..., way] of all labels after adaptation, given labels [...]. The model's
    probabilities of the labels that were not given show what a wrong label looks like: where the
    given ones are about as rare as these, they are as likely wrong. A weight is the probability
    that a label is right. Where hardly any label looks wrong, or nearly all do, all weights are 1.

    >>> random = torch.Generator().manual_seed(0)
    >>> true = torch.randint(5, (20000,), generator=random)
    >>> scores = torch.randn(20000, 5, generator=random)
    >>> scores[torch.arange(20000), true] += 3
    >>> given = torch.where(torch.rand(20000, generator=random) < 0.4, (true + 1) % 5, true)
    >>> weights, noise = find_trust(scores.softmax(-1), given)
    >>> 0.35 < noise < 0.45, bool(weights[0] < 0.1), bool(weights[-1] > 1.4)
    (True, True, True)
    """
    way = probabilities.shape[-1]
    flat, chosen = probabilities.reshape(-1, way), labels.reshape(-1, 1)
    given = torch.bincount(_bins(flat.gather(1, chosen)[:, 0]), minlength=BINS)
    everything = torch.bincount(_bins(flat).flatten(), minlength=BINS)
    share_given = _shares(given)
    share_other = _shares(everything - given)
    noise = _share_wrong(share_given, share_other, way)
    ones = torch.ones(BINS, device=probabilities.device)
    if not LEAST_NOISE <= noise <= MOST_NOISE:
        return ones, noise
    # given = (1 − ν) right + ν wrong; others = ν/(way − 1) right + the rest wrong: solve for right
    leak = noise / (way - 1)
    right = (share_given * (1 - leak) - share_other * noise) / ((1 - noise) * (1 - leak))
    right /= 1 - noise * leak / ((1 - noise) * (1 - leak))
    likely = np.clip((1 - noise) * right / np.maximum(share_given, 1e-12), 0, 1)
    # the more probable a label, the likelier it is right: bins with few images may not say else
    table = np.maximum.accumulate(likely)
    mean = float((table * share_given).sum())
    if mean <= 0:
        return ones, noise
    return torch.from_numpy(table / mean).to(ones), noise


def _shares(counts: Tensor) -> Numbers:
    numbers: Numbers = counts.double().cpu().numpy()
    shares: Numbers = numbers / max(numbers.sum(), 1.0)
    return shares


def _share_wrong(given: Numbers, other: Numbers, way: int) -> float:
    """Share of given labels that are wrong, from the tails of improbable labels."""
    below_given, below_other = np.cumsum(given), np.cumsum(other)
    tails = below_other >= TAIL
    if not tails.any():
        return 0.0
    ratio = float((below_given[tails] / below_other[tails]).min())
    return ratio / (1 + ratio / (way - 1))
