"""Do tasks repeat each other, by classes or gradients? Even draws are even."""

import pytest
import torch

from derts.selection.noisy_tasks import classes_explain
from derts.selection.redundancy import (
    EVEN,
    are_uneven,
    balance_classes,
    balanced_size,
    evenness,
)


def drawn(tasks: int, way: int, count: int, seed: int, first: int = 0) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return first + torch.rand(tasks, count, generator=random).argsort(1)[:, :way]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("tasks", "way", "count"), [(40, 5, 60), (400, 5, 6), (400, 20, 351), (3200, 5, 64), (64, 2, 3)]
)
def test_even_draws_are_even_and_noise_has_no_classes(
    tasks: int, way: int, count: int, seed: int
) -> None:
    classes = drawn(tasks, way, count, seed)
    assert not are_uneven(classes)
    for share in (0.02, 0.3, 0.9):
        chance = torch.rand(tasks, generator=torch.Generator().manual_seed(seed + 99)) < share
        assert not classes_explain(chance, classes)
    assert not classes_explain(torch.zeros(tasks, dtype=torch.bool), classes)


@pytest.mark.parametrize("share", [0.03, 0.1, 0.3])
def test_a_rare_domain_is_seen_by_both(share: float) -> None:
    tasks, few = 800, round(800 * share)
    classes = torch.cat((drawn(tasks - few, 5, 12, 0), drawn(few, 5, 40, 1, first=12)))
    rare = torch.arange(tasks) >= tasks - few
    assert are_uneven(classes)
    assert classes_explain(rare, classes)
    # some of the rare ones are easy, some of the common ones hard
    wrong = torch.rand(tasks, generator=torch.Generator().manual_seed(2)) < 0.1 * share
    assert classes_explain(rare ^ wrong, classes)


def test_a_class_that_is_missing_explains_as_well() -> None:
    classes = drawn(400, 5, 6, 0)  # of six classes one is missing in each task
    assert classes_explain((classes != 3).all(1), classes)
    assert not are_uneven(classes)


def test_classes_that_are_a_little_more_frequent_are_not_uneven() -> None:
    classes = torch.cat((drawn(20_000, 5, 64, 0), drawn(2_000, 5, 32, 1)))
    assert not are_uneven(classes)


def test_a_balanced_choice_uses_classes_evenly_and_no_task_twice() -> None:
    classes = torch.cat((drawn(720, 5, 6, 0), drawn(80, 5, 60, 1)))
    size = balanced_size(classes)
    assert 60 < size < 120
    chosen = balance_classes(classes, size, torch.Generator().manual_seed(3))
    assert len(chosen.unique()) == size
    counts = torch.bincount(classes.flatten(), minlength=60)
    after = torch.bincount(classes[chosen].flatten(), minlength=60)
    assert int(counts.max()) > 500
    assert int(after.max()) < 20
    assert int((after > 0).sum()) == int((counts > 0).sum())  # each class once or more
    assert not are_uneven(classes[chosen])
    again = balance_classes(classes, size, torch.Generator().manual_seed(3))
    assert torch.equal(chosen, again)
    every = balance_classes(classes, len(classes), torch.Generator().manual_seed(3))
    assert len(every.unique()) == len(classes)


def test_even_classes_are_balanced_by_all_tasks() -> None:
    classes = drawn(3200, 5, 64, 0)
    assert balanced_size(classes) == pytest.approx(3200, rel=0.05)


@pytest.mark.parametrize("dimensions", [2, 5, 300])
def test_a_cloud_is_even_and_heaps_are_not(dimensions: int) -> None:
    random = torch.Generator().manual_seed(0)
    stretch = torch.linspace(0.1, 3, dimensions)
    cloud = torch.randn(600, dimensions, generator=random) * stretch + 5
    heaps = torch.cat((cloud[:60], cloud[:3].repeat(180, 1)))[torch.randperm(600, generator=random)]
    assert evenness(cloud, random) > EVEN
    assert evenness(heaps, random) < EVEN / 2
    assert evenness(torch.zeros(9, dimensions), random) == 1.0
