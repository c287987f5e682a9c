"""Which tasks of a pool look noisy, from one score per task; knows nothing of tasks.

Good scores are a task's query loss after adaptation (`loss`), Σ over its query of ‖p − y‖
(`error`), or, as in the paper, the norm of its estimated gradient (`norm`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from derts.errors import DertsError
from derts.selection.class_balance import classes_explain
from derts.selection.modes import find_dip, find_valley

Rule = Literal["multiple", "quantile", "automatic"]
Numbers = NDArray[np.float64]

# √N × dip of a uniform sample exceeds this once in 50 times, that of a Gaussian one never
MODES_APART = 0.45
# clean tasks may be of two kinds, hard and easy: where nothing scores like random labels, ask more
MODES_FAR_APART = 0.6
NOISY_KEPT = 2.0  # clean tasks that may be lost to drop one noisy task
LEAST_NOISE = 0.02  # a smaller share of tasks that score like random labels is chance
MOST_NOISE = 0.95  # where nearly all score like random labels, the model knows nothing yet


@dataclass(frozen=True, eq=False)
class NoiseSplit:
    """drop: bool [N] on the scores' device, true where the score is at least `threshold`.

    separation: how far the scores are from one mode, √N × dip: near 0.2 for one mode, above 0.45
    hardly ever by chance, 1 to 2 and more for two modes that stand apart.
    noise: estimated share of tasks with random labels; not a number without a reference.
    """

    drop: Tensor
    threshold: float
    separation: float
    noise: float = math.nan


def find_noisy(
    scores: Tensor,
    rule: Rule = "automatic",
    value: float = 1.25,
    reference: Tensor | None = None,
    classes: Tensor | None = None,
) -> NoiseSplit:
    """Splits N scores [N], high where a task looks noisy.

    multiple    drop scores of at least `value` × their mean (the paper: 1.25)
    quantile    drop the `value` share with the highest scores (0.3: three tasks of ten)
    automatic   find out whether there are noisy tasks, and how many; `value` is not used

    Automatic asks `reference` [any number] first, scores of the same images with random labels
    (`gradients.with_random_labels`): the share of the pool that scores like these, and the
    threshold that costs least, a noisy task kept counting as two clean ones dropped. Without a
    reference, or where the upper of two modes scores lower than random labels do, it drops the
    upper mode: Hartigan's dip says whether there are two, the valley of a kernel density where
    they part; unless the `classes` [N, way] of tasks, where given, explain who is in it: rare
    classes are hard, not noisy. Otherwise nothing goes. (Otsu's threshold, the best split in two
    by variance, splits clean pools too, and in the wrong place where one mode is wider or fuller.)

    Measured by query loss on 120 pools of 640 tasks of training glyphs (the constants were chosen
    on three quarters of them); ANIL and ProtoNet, 1 and 5 shots, after 50 to 250 updates; means
    over pools. Of clean pools a reference drops nothing, the dip nothing, Otsu 54%. With 10 to
    60% of the tasks noisy, the clean tasks dropped and the noisy ones in what is kept are 2% and
    2% with a reference, 2% and 11% by the dip, 14% and 2% by Otsu, 0% and 27% by 1.25 × the mean.
    Before 50 updates a reference drops 3% of clean pools (at worst 21%): warm up first.

    Scores that are not finite are dropped and count for nothing else.

    >>> split = find_noisy(torch.tensor([1.0, 1.1, 0.9, 3.0, 1.0, float("nan")]), "multiple")
    >>> split.drop.tolist(), round(split.threshold, 2)
    ([False, False, False, True, False, True], 1.75)
    """
    if scores.ndim != 1:
        raise DertsError(f"scores have shape {list(scores.shape)}; give one number per task")
    held = scores.detach().double().cpu().numpy()
    ordered = _finite(held)
    dip, noise = find_dip(ordered), math.nan
    if rule == "multiple":
        if not value > 0:
            raise DertsError(f"the multiple of the mean is {value}; give a number above 0")
        threshold = value * float(ordered.mean()) if len(ordered) else math.inf
    elif rule == "quantile":
        threshold = _quantile(ordered, value)
    elif rule == "automatic":
        threshold, apart, limit = math.inf, MODES_APART, math.inf
        if reference is not None:
            random = _finite(reference.detach().double().cpu().numpy())
            noise, limit = _like_random(ordered, random)
            apart = MODES_APART if noise >= LEAST_NOISE else MODES_FAR_APART
        if dip.size >= apart:
            threshold = find_valley(ordered, dip)
            above = torch.from_numpy(held >= threshold)
            if classes is not None and classes_explain(above, classes.cpu()):
                threshold = math.inf
        # much more above the valley than random labels explain: noise of another kind
        if limit < math.inf and noise >= float((ordered >= threshold).mean()) / 2:
            threshold = limit
    else:
        raise DertsError(f"no rule is called {rule!r}; choose from {', '.join(get_args(Rule))}")
    drop = ~(np.isfinite(held) & (held < threshold))
    return NoiseSplit(torch.from_numpy(drop).to(scores.device), threshold, dip.size, noise)


def separation(scores: Tensor, noisy: Tensor) -> float:
    """Chance that a noisy task scores above a clean one (AUROC), ties counting half.

    0.5 means that the scores [N] know nothing of `noisy` (bool [N]); for diagnosis, because no
    strategy may know `noisy`. Not a number where all tasks are of one kind. Scores that are not
    numbers count as highest.

    >>> separation(torch.tensor([0.1, 0.2, 0.2, 0.9]), torch.tensor([False, False, True, True]))
    0.875
    """
    mask = noisy.detach().bool().cpu()
    values = scores.detach().double().cpu().nan_to_num(nan=math.inf)
    _, place, counts = values.unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0).double() - (counts - 1) / 2)[place]  # equal scores share their mean
    positive, negative = int(mask.sum()), int((~mask).sum())
    if positive == 0 or negative == 0:
        return math.nan
    above = float(ranks[mask].sum()) - positive * (positive + 1) / 2
    return above / (positive * negative)


def _finite(values: Numbers) -> Numbers:
    ordered: Numbers = np.sort(values[np.isfinite(values)])
    return ordered


def _quantile(ordered: Numbers, share: float) -> float:
    if not 0 <= share <= 1:
        raise DertsError(f"the share to drop is {share}; give a number between 0 and 1")
    count = round(share * len(ordered))
    return float(ordered[-count]) if count else math.inf


def _like_random(ordered: Numbers, random: Numbers) -> tuple[float, float]:
    """Share of the sorted scores that are like the random ones, and the threshold between.

    Above any score lies at least noise × the share of random ones: the tightest such bound in the
    upper half of the random ones, where clean tasks are rare, is the estimate of the noise.
    """
    if not len(ordered) or not len(random):
        return 0.0, math.inf
    # thinner tails hold too few tasks to count
    tails = np.linspace(0.5, min(0.5, max(0.1, 16 / min(len(ordered), len(random)))), 9)
    limits = np.quantile(random, 1 - tails)
    shares = _share_from(ordered, limits)
    # half a standard error more: the smallest of several bounds errs downwards
    bounds = (shares + 0.5 * np.sqrt(shares / len(ordered))) / tails
    noise = min(1.0, float(bounds.min()))
    if noise < LEAST_NOISE or noise > MOST_NOISE:
        return noise, math.inf
    # clean tasks dropped + NOISY_KEPT × noisy ones kept, less what no threshold changes
    kept_cost = (1 + NOISY_KEPT) * noise * _share_from(random, ordered)
    wrong = _share_from(ordered, ordered) - kept_cost
    best = int(wrong.argmin())
    if wrong[best] >= 0 or best / len(ordered) < max((1 - noise) / 3, LEAST_NOISE):
        # little is left of what is clean: the scores cannot tell the two apart
        return noise, math.inf
    return noise, float(ordered[best])


def _share_from(ordered: Numbers, limits: Numbers) -> Numbers:
    """Share of the sorted numbers that are at least each limit."""
    shares: Numbers = 1 - np.searchsorted(ordered, limits) / len(ordered)
    return shares
