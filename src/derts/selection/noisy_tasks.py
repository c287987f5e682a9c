"""Which tasks of a pool look noisy? The paper's rule by gradient norms, ours by query losses."""

import math
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from derts.errors import DertsError
from derts.gradients import PoolEstimate

Numbers = NDArray[np.float64]
PAPER_MULTIPLE = 1.25

# √N × dip of a uniform sample exceeds this once in 50 times, that of a Gaussian one never
MODES_APART = 0.45
# clean tasks may be of two kinds, hard and easy: where nothing scores like random labels, ask more
MODES_FAR_APART = 0.6
NOISY_KEPT = 2.0  # clean tasks that may be lost to drop one noisy task
LEAST_NOISE = 0.02  # a smaller share of tasks that score like random labels is chance
MOST_NOISE = 0.95  # where nearly all score like random labels, the model knows nothing yet
EXPLAINED = 0.5  # of the variance between tasks, by their classes
LEAST = 16  # fewer numbers say nothing about modes
POINTS = 512  # of the distribution function that the dip looks at


class NoiseSplit(NamedTuple):
    """Which tasks look noisy.

    drop        bool [N] on the CPU, true where the score is at least `threshold`
    separation  √N × dip: near 0.2 for one mode, above 0.45 hardly by chance, 1 and more for two
    noise       estimated share of tasks with random labels; not a number without a reference
    """

    drop: Tensor
    threshold: float
    separation: float = math.nan
    noise: float = math.nan


def noisy_tasks(
    rule: Literal["automatic", "paper", "none"],
    estimate: PoolEstimate,
    gradients: Tensor,
    classes: Tensor | None = None,
) -> NoiseSplit:
    """The noisy tasks of a pool: by query loss (`find_noisy`), or the paper's: gradients [N, d] of
    at least 1.25 × their mean norm.
    """
    if rule == "none":
        return NoiseSplit(torch.zeros(len(gradients), dtype=torch.bool), math.inf)
    if rule == "automatic":
        return find_noisy(estimate.losses, estimate.reference_losses, classes)
    norms = torch.linalg.vector_norm(gradients.detach().double(), dim=1).cpu()
    finite = norms.isfinite()
    mean = float(norms[finite].mean()) if bool(finite.any()) else math.inf
    threshold = PAPER_MULTIPLE * mean
    return NoiseSplit(~(finite & (norms < threshold)), threshold)


def find_noisy(
    scores: Tensor, reference: Tensor | None = None, classes: Tensor | None = None
) -> NoiseSplit:
    """Splits scores [N], high where a task looks noisy: whether there are such, and which.

    First by `reference` [any number], scores of the same images with random labels: the share of
    the pool that scores like these, and the threshold that costs least, a noisy task kept counting
    as two clean ones dropped. Without one, or where the upper of two modes scores lower than random
    labels do, the upper mode (Hartigan's dip) is dropped, unless the `classes` [N, way] of tasks
    explain who is in it: rare classes are hard, not noisy. Scores that are not finite are dropped
    and count for nothing else. What was measured: research/log.md.

    >>> scores = torch.cat((torch.linspace(0.9, 1.1, 40), torch.linspace(2.9, 3.1, 20)))
    >>> find_noisy(scores).drop.sum(), find_noisy(scores[:40]).drop.sum()
    (tensor(20), tensor(0))
    """
    if scores.ndim != 1:
        raise DertsError(f"scores have shape {list(scores.shape)}; give one number per task")
    held = scores.detach().double().cpu().numpy()
    ordered = _finite(scores)
    dip, noise = find_dip(ordered), math.nan
    threshold, apart, limit = math.inf, MODES_APART, math.inf
    if reference is not None:
        noise, limit = _like_random(ordered, _finite(reference))
        apart = MODES_APART if noise >= LEAST_NOISE else MODES_FAR_APART
    if dip.size >= apart:
        threshold = find_valley(ordered, dip)
        above = torch.from_numpy(held >= threshold)
        if classes is not None and classes_explain(above, classes.cpu()):
            threshold = math.inf
    # much more above the valley than random labels explain: noise of another kind
    if limit < math.inf and noise >= float((ordered >= threshold).mean()) / 2:
        threshold = limit
    drop = ~(np.isfinite(held) & (held < threshold))
    return NoiseSplit(torch.from_numpy(drop), threshold, dip.size, noise)


def classes_explain(which: Tensor, classes: Tensor) -> bool:
    """Whether tasks are among `which` (bool [N]) because of their classes [N, way].

    By how much of the variance a linear model of classes explains, beyond what as many numbers of
    chance would. With too few tasks for that: no.
    """
    occurring, ranks = classes.unique(return_inverse=True)
    tasks, count = len(classes), len(occurring)
    freedom = tasks - count - 1
    share = which.double().mean()
    total = float(share * (1 - share)) * tasks
    if freedom < count or not total:
        return False
    has = torch.zeros(tasks, count, dtype=torch.double).scatter_(1, ranks, 1.0)
    has -= has.mean(0)
    centred = which.double() - share
    # a task has `way` classes, whichever they are, so one column follows from the others
    gram = has.T @ has + 1e-6 * tasks * torch.eye(count, dtype=torch.double)
    left = centred - has @ torch.linalg.solve(gram, has.T @ centred)
    return 1 - float(left.square().sum()) / total * (tasks - 1) / freedom > EXPLAINED


def _finite(values: Tensor) -> Numbers:
    held = values.detach().double().cpu().numpy()
    return np.sort(held[np.isfinite(held)])


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
    return np.asarray(1 - np.searchsorted(ordered, limits) / len(ordered))


class Dip(NamedTuple):
    """How far a sample is from one mode, √N × dip, and two of its numbers around the valley."""

    size: float
    low: float
    high: float


def find_dip(ordered: Numbers) -> Dip:
    """Hartigan's dip of sorted numbers: their distance from the nearest sample with one mode.

    With a single mode at m the distribution function is convex before m and concave after it.
    The further right m is, the more the left side can offend, the less the right side: the dip is
    half the offence where the two balance, and the valley lies between the worst offenders.
    """
    count = len(ordered)
    if count < LEAST or ordered[0] == ordered[-1]:
        return Dip(0.0, math.nan, math.nan)
    chosen = np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(np.int64))
    x = (ordered[chosen] - ordered[0]) / (ordered[-1] - ordered[0])
    below, above = chosen / count, 1 - (chosen + 1) / count

    last = len(x) - 1

    def offences(mode: int) -> tuple[tuple[float, int], tuple[float, int]]:
        left = _worst(x[: mode + 1], below[: mode + 1])
        gap, place = _worst(-x[mode:][::-1], above[mode:][::-1])
        return left, (gap, last - place)

    low, high = 0, last
    while high - low > 1:
        middle = (low + high) // 2
        left, right = offences(middle)
        low, high = (low, middle) if left[0] > right[0] else (middle, high)
    left, right = min((offences(low), offences(high)), key=lambda both: max(both[0][0], both[1][0]))
    size = math.sqrt(count) * (max(left[0], right[0]) / 2)
    return Dip(size, float(ordered[chosen[left[1]]]), float(ordered[chosen[right[1]]]))


def _worst(x: Numbers, y: Numbers) -> tuple[float, int]:
    """How far, and where, points (x ascending, y) lie highest above their convex minorant."""
    corners: list[int] = []
    xs, ys = x.tolist(), y.tolist()
    for here in range(len(xs)):
        while len(corners) > 1:
            a, b = corners[-2:]
            if (ys[b] - ys[a]) * (xs[here] - xs[a]) < (ys[here] - ys[a]) * (xs[b] - xs[a]):
                break
            corners.pop()
        corners.append(here)
    gaps = y - np.interp(x, x[corners], y[corners])
    place = int(gaps.argmax())
    return float(gaps[place]), place


def find_valley(ordered: Numbers, dip: Dip) -> float:
    """Where between the two modes the density of the sorted numbers is lowest."""
    middle = (dip.low + dip.high) / 2
    parts = (ordered[ordered <= middle], ordered[ordered > middle])
    within = sum(float(part.var()) * len(part) for part in parts if len(part)) / len(ordered)
    # half of Silverman's width, or the narrower mode would spread over the valley
    width = max(0.45 * math.sqrt(within) * len(ordered) ** -0.2, 1e-9 * (dip.high - dip.low))
    if width == 0:
        return dip.low
    grid = np.linspace(dip.low, dip.high, 128)
    first, last = np.searchsorted(ordered, (dip.low - 6 * width, dip.high + 6 * width))
    near = ordered[first:last]
    density = np.array([np.exp(-0.5 * ((near - at) / width) ** 2).sum() for at in grid])
    lowest = np.flatnonzero(density <= density.min())
    return float(grid[lowest[len(lowest) // 2]])
