"""Label noise: as much as was asked for, where it was asked for, and the truth is kept."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, poisson

from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.tasks import Noise, SwapNoise, TaskNoise, TaskPool, numpy_generator

Make = Callable[..., ImageTable]


@pytest.fixture
def draw(table: Make) -> Callable[..., TaskPool]:
    images = table(*(30,) * 12)
    return lambda noise, tasks=50: TaskPool.sample(images, tasks=tasks, seed=0, noise=noise)


@pytest.mark.parametrize(("rate", "share"), [(3.02, 0.25), (5.62, 0.40)])
def test_swap_noise_has_the_measured_rate(
    rate: float, share: float, draw: Callable[..., TaskPool]
) -> None:
    wrong = draw(SwapNoise(rate), 3200).mislabelled()
    assert abs(float(wrong.mean()) - share) < 0.01
    assert float(wrong.std()) > 0.03


def test_a_low_limit_cannot_reach_forty_percent(draw: Callable[..., TaskPool]) -> None:
    assert float(draw(SwapNoise(100.0, limit=5), 800).mislabelled().mean()) < 0.39


@pytest.mark.parametrize("rate", [0.0, 0.4, 5.62])
def test_swaps_follow_poissons_law_up_to_the_limit(rate: float) -> None:
    tasks, way, count = 4000, 3, 4
    first, second = SwapNoise(rate, limit=3)._swaps(tasks, way, count, numpy_generator(1))
    real = first != second
    begin = np.arange(tasks) * way * count
    owner, other = ((places - begin)[real] // count for places in (first, second))
    assert (owner != other).all()
    per_class = Counter(zip(np.nonzero(real)[1], owner, strict=True)).values()
    counts = np.bincount([*per_class, 3], minlength=4) - [0, 0, 0, 1]
    counts[0] = tasks * way - counts[1:].sum()
    law = poisson.pmf(range(3), rate)
    expected = tasks * way * np.append(law, 1 - law.sum())
    if rate:
        assert chisquare(counts, expected).pvalue > 1e-3
        assert chisquare(np.bincount(owner * way + other)[[1, 2, 3, 5, 6, 7]]).pvalue > 1e-3
    else:
        assert counts.tolist() == [tasks * way, 0, 0, 0]


def test_swap_noise_keeps_every_class_its_shots_and_the_task_its_images(
    draw: Callable[..., TaskPool],
) -> None:
    clean, noisy = draw(None), draw(SwapNoise(5.62))
    assert torch.equal(noisy.support_labels, clean.support_labels)
    ours, theirs = (torch.cat((one.support, one.query), 1) for one in (noisy, clean))
    assert torch.equal(ours.sort(1).values, theirs.sort(1).values)


@pytest.mark.parametrize("noise", [SwapNoise(5.62), TaskNoise(0.5)])
def test_true_labels_tell_the_class_of_the_image(noise: Noise, table: Make) -> None:
    images = table(*(30,) * 12)
    pool = TaskPool.sample(images, tasks=40, way=5, shot=2, query=8, seed=1, noise=noise)
    assert pool.classes is not None
    true = torch.cat((pool.true_support_labels, pool.true_query_labels), 1)
    named = images.labels[torch.cat((pool.support, pool.query), 1)]
    assert torch.equal(pool.classes.gather(1, true), named)
    assert 0.1 < float(pool.mislabelled().mean()) < 0.7


def test_task_noise_corrupts_some_tasks_and_leaves_the_others_alone(
    draw: Callable[..., TaskPool],
) -> None:
    pool = draw(TaskNoise(0.6), 3200)
    corrupted = pool.mislabelled() > 0
    assert abs(float(corrupted.float().mean()) - 0.6) < 0.03
    assert abs(float(pool.mislabelled()[corrupted].mean()) - 0.8) < 0.01
    wrong = pool.query_labels != pool.true_query_labels
    steps = (pool.query_labels - pool.true_query_labels)[wrong] % 5
    assert chisquare(torch.bincount(steps, minlength=5)[1:]).pvalue > 1e-3


@pytest.mark.parametrize("bad", [(-0.1, 0.8), (0.5, 1.2)])
def test_impossible_noise_is_refused(bad: tuple[float, float]) -> None:
    with pytest.raises(DertsError, match="between 0 and 1"):
        TaskNoise(*bad)
    with pytest.raises(DertsError, match="at least 0"):
        SwapNoise(-1.0)
