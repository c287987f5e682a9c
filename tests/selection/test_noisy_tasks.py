"""Which tasks look noisy: one-mode pools stay whole, mixtures are split, NaN poisons nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from derts.diagnosis import auroc
from derts.errors import DertsError
from derts.gradients import PoolEstimate
from derts.selection.noisy_tasks import find_dip, find_noisy, noisy_tasks

Draw = Callable[[np.random.Generator, int], "np.ndarray[tuple[int], np.dtype[np.float64]]"]
ONE_MODE: dict[str, Draw] = {
    "gaussian": lambda random, n: random.normal(size=n),
    "gamma": lambda random, n: random.gamma(2.0, size=n),
    "exponential": lambda random, n: random.exponential(size=n),
    "lognormal": lambda random, n: random.lognormal(0, 0.7, size=n),
    "left-skewed": lambda random, n: -random.gamma(2.0, size=n),
    "beta": lambda random, n: random.beta(2, 2, size=n),
    "heavy tails": lambda random, n: random.standard_t(3, size=n),
}


@pytest.mark.parametrize("count", [10, 64, 640, 3200])
@pytest.mark.parametrize("name", list(ONE_MODE))
def test_a_pool_with_one_mode_is_kept_whole(name: str, count: int) -> None:
    for seed in range(3):
        scores = torch.from_numpy(ONE_MODE[name](np.random.default_rng(seed), count))
        assert not find_noisy(scores).drop.any()


def test_uniform_scores_are_hardly_ever_split() -> None:
    random = np.random.default_rng(0)
    splits = [find_noisy(torch.from_numpy(random.uniform(size=320))) for _ in range(40)]
    assert np.mean([float(split.drop.double().mean()) for split in splits]) < 0.05


def mixture(
    share: float, apart: float, ratio: float, count: int = 1600
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores, which are noisy, and a reference; standard deviations 1 and `ratio`."""
    random = np.random.default_rng(3)
    noisy = random.random(count) < share
    high = apart + ratio * random.normal(size=count)
    scores = np.where(noisy, high, random.normal(size=count))
    reference = apart + ratio * random.normal(size=count)
    return torch.from_numpy(scores), torch.from_numpy(noisy), torch.from_numpy(reference)


def mistakes(drop: torch.Tensor, noisy: torch.Tensor) -> tuple[float, float]:
    """Share of clean tasks that is dropped, and of noisy ones in what is kept."""
    return float(drop[~noisy].double().mean()), float(noisy[~drop].double().mean())


@pytest.mark.parametrize("ratio", [0.4, 1.0, 1.5])
@pytest.mark.parametrize("share", [0.2, 0.4, 0.6, 0.8])
def test_two_modes_are_split_in_their_valley(share: float, ratio: float) -> None:
    scores, noisy, _ = mixture(share, 6.0, ratio)
    split = find_noisy(scores)
    assert split.separation > 0.45
    assert max(mistakes(split.drop, noisy)) < 0.06


@pytest.mark.parametrize("ratio", [0.4, 1.0, 1.5])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.4, 0.6, 0.8, 0.9])
def test_a_reference_finds_noise_that_makes_no_second_mode(share: float, ratio: float) -> None:
    scores, noisy, reference = mixture(share, 3.0, ratio)
    split = find_noisy(scores, reference=reference)
    assert split.noise == pytest.approx(float(noisy.double().mean()), abs=0.1)

    def cost(threshold: float) -> int:
        return int(
            (~noisy & (scores >= threshold)).sum() + 2 * (noisy & (scores < threshold)).sum()
        )

    best = min(cost(float(threshold)) for threshold in scores)
    assert cost(split.threshold) <= best + 0.02 * len(scores)


def test_a_reference_keeps_clean_pools_whole() -> None:
    clean, _, reference = mixture(0.0, 3.0, 1.0)
    split = find_noisy(clean, reference=reference)
    assert split.noise < 0.02
    assert not split.drop.any()


def test_scores_that_know_nothing_drop_nothing() -> None:
    scores, _, reference = mixture(0.5, 0.0, 1.0)
    split = find_noisy(scores, reference=reference)
    assert split.noise > 0.9
    assert not split.drop.any()


def test_an_upper_mode_below_random_labels_is_dropped_all_the_same() -> None:
    scores, noisy, reference = mixture(0.5, 6.0, 1.0)
    split = find_noisy(scores, reference=reference + 6.0)
    assert split.noise < 0.02
    assert max(mistakes(split.drop, noisy)) < 0.03


def test_an_upper_mode_of_rare_classes_is_hard_and_not_noisy() -> None:
    scores, upper, reference = mixture(0.2, 6.0, 1.0)
    random = torch.Generator().manual_seed(0)

    def drawn(count: int, first: int) -> torch.Tensor:
        orders = torch.rand(len(scores), count, generator=random).argsort(1)
        return first + orders[:, :5]

    rare = torch.where(upper[:, None], drawn(40, 6), drawn(6, 0))
    far = reference + 6.0  # what random labels score
    assert not find_noisy(scores, reference=far, classes=rare).drop.any()
    assert not find_noisy(scores, classes=rare).drop.any()
    without = find_noisy(scores, reference=far).drop
    assert max(mistakes(without, upper)) < 0.03
    # of the same classes as all others: noise; and what scores like random labels is, whatever
    assert torch.equal(find_noisy(scores, reference=far, classes=drawn(46, 0)).drop, without)
    assert find_noisy(scores, reference=reference, classes=rare).drop.any()


def test_the_papers_rule_drops_from_1_25_times_the_mean_norm_on() -> None:
    gradients = torch.tensor([[3.0, 4.0], [4.0, 0.0], [0.0, 4.0], [3.0, 0.0], [math.nan, 0.0]])
    nothing = PoolEstimate({}, torch.zeros(5), torch.zeros(5))
    split = noisy_tasks("paper", nothing, gradients)
    assert split.threshold == 5.0
    assert split.drop.tolist() == [True, False, False, False, True]
    assert not noisy_tasks("none", nothing, gradients).drop.any()
    assert noisy_tasks("paper", nothing, torch.full((3, 2), math.nan)).drop.all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_scores_that_are_not_finite_are_dropped_and_poison_nothing(bad: float) -> None:
    scores, _, reference = mixture(0.4, 6.0, 1.0, 200)
    expected = find_noisy(scores, reference)
    worse = torch.cat((scores, torch.tensor([bad], dtype=scores.dtype)))
    spoiled = torch.cat((reference, torch.tensor([bad], dtype=scores.dtype)))
    split = find_noisy(worse, spoiled)
    assert split.threshold == expected.threshold
    assert split.drop.tolist() == [*expected.drop.tolist(), True]


def test_nothing_finite_or_all_alike() -> None:
    assert find_noisy(torch.full((20,), math.nan)).drop.all()
    assert not find_noisy(torch.ones(40), reference=torch.ones(40)).drop.any()


def test_the_dip_does_not_depend_on_place_or_scale() -> None:
    scores = mixture(0.5, 4.0, 1.0)[0].numpy()
    ordered = np.sort(scores)
    assert find_dip(ordered * 1e-6 + 3).size == pytest.approx(find_dip(ordered).size, rel=1e-4)


def test_separation_is_the_area_under_the_curve() -> None:
    scores, noisy, _ = mixture(0.3, 1.0, 1.0, 200)
    scores = scores.round(decimals=1)  # with ties
    pairs = scores[noisy][:, None] - scores[~noisy][None]
    expected = (pairs > 0).double().mean() + 0.5 * (pairs == 0).double().mean()
    assert auroc(scores, noisy) == pytest.approx(float(expected))
    assert math.isnan(auroc(scores, torch.zeros(200, dtype=torch.bool)))


def test_scores_are_one_number_per_task() -> None:
    with pytest.raises(DertsError, match="one number per task"):
        find_noisy(torch.ones(4, 2))
