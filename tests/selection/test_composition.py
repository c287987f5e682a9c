"""What the classes of tasks say about a pool: even draws are even, noise has no classes."""

import pytest
import torch

from derts.selection.composition import classes_are_uneven, classes_explain


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
    assert not classes_are_uneven(classes)
    for share in (0.02, 0.3, 0.9):
        chance = torch.rand(tasks, generator=torch.Generator().manual_seed(seed + 99)) < share
        assert not classes_explain(chance, classes)
    assert not classes_explain(torch.zeros(tasks, dtype=torch.bool), classes)


@pytest.mark.parametrize("share", [0.03, 0.1, 0.3])
def test_a_rare_domain_is_seen_by_both(share: float) -> None:
    tasks, few = 800, round(800 * share)
    classes = torch.cat((drawn(tasks - few, 5, 12, 0), drawn(few, 5, 40, 1, first=12)))
    rare = torch.arange(tasks) >= tasks - few
    assert classes_are_uneven(classes)
    assert classes_explain(rare, classes)
    # some of the rare ones are easy, some of the common ones hard
    wrong = torch.rand(tasks, generator=torch.Generator().manual_seed(2)) < 0.1 * share
    assert classes_explain(rare ^ wrong, classes)


def test_a_class_that_is_missing_explains_as_well() -> None:
    classes = drawn(400, 5, 6, 0)  # of six classes one is missing in each task
    assert classes_explain((classes != 3).all(1), classes)
    assert not classes_are_uneven(classes)


def test_classes_that_are_a_little_more_frequent_are_not_uneven() -> None:
    classes = torch.cat((drawn(20_000, 5, 64, 0), drawn(2_000, 5, 32, 1)))
    assert not classes_are_uneven(classes)
