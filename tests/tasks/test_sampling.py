"""Tasks are drawn uniformly, from what was asked for, and follow from the seed alone."""

from collections.abc import Callable
from dataclasses import replace
from math import perm

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from derts.config import TrainConfig
from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.tasks import TaskPool, TaskSampler, numpy_generator
from derts.tasks.sampling import AT_ONCE, draw_distinct
from derts.training.task_drawer import BLOCK, TaskDrawer

Make = Callable[..., ImageTable]
EVEN, UNEVEN = (30,) * 12, (20, 33, 21, 27, 20, 400)
RARE = 1e-3  # a χ² test of right draws fails this often; the seeds are fixed


def used(pool: TaskPool) -> torch.Tensor:
    return torch.cat((pool.support, pool.query), 1)


@pytest.mark.parametrize(
    ("size", "count"), [(5, 2), (6, 3), (7, 3), (4, 4), (5, 4), (9, 1), (1, 1)]
)
def test_every_ordered_choice_is_equally_likely(size: int, count: int) -> None:
    """Both methods, the one by duplicates drawn again and the one by sorting."""
    rows = draw_distinct(np.full(60 * perm(size, count), size), count, numpy_generator((3, size)))
    codes = (rows * size ** np.arange(count)).sum(1)
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == perm(size, count)
    assert chisquare(counts).pvalue > RARE or len(counts) == 1


def test_rows_of_unequal_sizes_are_each_uniform_and_distinct() -> None:
    sizes = np.tile([20, 21, 39, 40, 60, 1000], 3000)
    assert (draw_distinct(np.full(99, 2**40), 20, numpy_generator(0)).max(1) > 2**36).all()
    rows = draw_distinct(sizes, 20, numpy_generator(0))
    assert len(rows) * 20 > 3 * AT_ONCE
    assert (np.diff(np.sort(rows, 1), axis=1) > 0).all()
    for number, size in enumerate(sizes[:6]):
        values = rows[number::6]
        assert values.max() < size
        # any one column: columns of a row depend on each other
        assert chisquare(np.bincount(values[:, 7], minlength=size)).pvalue > RARE


@pytest.mark.parametrize("sizes", [EVEN, UNEVEN])
def test_images_are_different_and_belong_to_their_class(table: Make, sizes: tuple[int]) -> None:
    images = table(*sizes)
    pool = TaskPool.sample(images, tasks=300, way=5, shot=4, query=16, seed=3)
    assert pool.classes is not None
    assert (used(pool).sort(1).values.diff(dim=1) > 0).all()
    labels = torch.cat((pool.support_labels, pool.query_labels), 1)
    assert torch.equal(images.labels[used(pool)], pool.classes.gather(1, labels))
    assert (pool.classes.sort(1).values.diff(dim=1) > 0).all()
    assert torch.bincount(pool.support_labels[0]).tolist() == [4] * 5


@pytest.mark.parametrize("sizes", [(20,) * 8, (8, 20, 40, 30, 25, 9)])
def test_classes_images_and_pairs_are_uniform(table: Make, sizes: tuple[int, ...]) -> None:
    images, tasks = table(*sizes), 12_000
    pool = TaskPool.sample(images, tasks=tasks, way=3, shot=2, query=3, seed=0)
    assert pool.classes is not None
    for place in range(3):
        assert chisquare(torch.bincount(pool.classes[:, place])).pvalue > RARE
    first, second = pool.classes[:, 0], pool.classes[:, 2]
    pairs = torch.bincount(first * len(sizes) + second).numpy()
    assert chisquare(pairs[pairs > 0]).pvalue > RARE
    assert (pairs > 0).sum() == perm(len(sizes), 2)
    for number, size in enumerate(sizes):
        one, other = (values[first == number] for values in (pool.support[:, 0], pool.query[:, 2]))
        for drawn in (one, other):
            counts = torch.bincount(drawn, minlength=len(images))[images.labels == number]
            assert chisquare(counts).pvalue > RARE
        together = np.unique((one * len(images) + other).numpy(), return_counts=True)[1]
        missing = perm(size, 2) - len(together)
        assert chisquare(np.append(together, np.zeros(missing))).pvalue > RARE


def test_the_seed_decides(table: Make) -> None:
    def draw(seed: int | tuple[int, str]) -> TaskPool:
        return TaskPool.sample(table(*EVEN), tasks=50, seed=seed)

    assert draw(0) == draw(0) != draw(1)
    assert draw((0, "pool")) == draw((0, "pool")) != draw((1, "pool"))
    known = draw(0)  # the same on every machine: a change is one of all results
    assert known.support[0, :5].tolist() == [280, 109, 285, 24, 200]


def test_a_run_draws_the_batch_of_an_update_whatever_was_drawn_before(table: Make) -> None:
    config, images = TrainConfig(), table(*EVEN)
    orders = [range(3 * BLOCK), [2 * BLOCK, 5, 2 * BLOCK + 1, 4, 5], reversed(range(2 * BLOCK + 2))]
    drawers = [TaskDrawer(config, images) for _ in orders]
    found = [
        {number: drawer.draw(4, "batch", number) for number in order}
        for drawer, order in zip(drawers, orders, strict=True)
    ]
    for others in found[1:]:
        assert all(found[0][number] == pool for number, pool in others.items())
    different = {tuple(pool.support.flatten().tolist()) for pool in found[0].values()}
    assert len(different) == 3 * BLOCK
    assert found[0][5].changes == [f"4 of {4 * BLOCK} tasks"]
    another = TaskDrawer(replace(config, seed=1), images)
    assert another.draw(4, "batch", 5) != found[0][5]
    assert another.draw(4, "pool", 5) != drawers[0].draw(4, "pool", 5)


def test_only_named_classes_are_used(table: Make) -> None:
    images = table(*EVEN)
    names = ["class 3", "class 1", "class 7"]
    pool = TaskPool.sample(images, tasks=30, way=3, shot=1, query=1, seed=0, classes=names)
    assert set(images.labels[pool.support].flatten().tolist()) == {1, 3, 7}
    assert pool.classes is not None
    assert pool.classes.unique().tolist() == [1, 3, 7]


@pytest.mark.parametrize("uneven", [False, True])
def test_a_pool_of_few_images(uneven: bool) -> None:
    labels = torch.arange(600).float().sqrt().long() % 10 if uneven else torch.arange(600) % 10
    table = ImageTable(torch.zeros(600, 2, 2, 1, dtype=torch.uint8), labels, tuple("abcdefghij"))
    sampler = TaskSampler(table)

    def draw(tasks: int, seed: int, pool_images: int = 0) -> TaskPool:
        return sampler.draw(tasks=tasks, way=5, shot=2, query=3, seed=seed, pool_images=pool_images)

    pool, other = draw(400, 7, pool_images=100), draw(400, 8, pool_images=100)
    assert len(used(pool).unique()) == 100
    assert torch.bincount(labels[used(pool).unique()]).tolist() == [10] * 10
    assert (used(pool).sort(1).values.diff(dim=1) > 0).all()
    assert len(torch.cat((used(pool), used(other))).unique()) > 150
    assert draw(9, 7) == draw(9, 7, pool_images=600) == draw(9, 7, pool_images=10**6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"way": 13}, "way 13 needs 13 classes but .* lower --tasks.way to 12"),
        ({"shot": 20}, "has 30 images but shot 20"),
        ({"tasks": 0}, "at least 1"),
        ({"classes": ["class 1", "zebra"]}, "no class 'zebra'"),
        ({"classes": ["class 1", "class 2", "class 1"]}, "'class 1' is named twice"),
    ],
)
def test_impossible_tasks_are_refused(change: dict[str, object], message: str, table: Make) -> None:
    settings: dict[str, object] = {"tasks": 4, "way": 5, "shot": 5, "query": 15} | change
    with pytest.raises(DertsError, match=message):
        TaskPool.sample(table(*EVEN), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sizes", "fix"),
    [
        ([9, 3, 9], r"lower --tasks\.shot or --tasks\.query, or leave it out \(--min-images 4\)$"),
        ([9, 3, 3], r"lower --tasks\.shot or --tasks\.query$"),
        ([9, 1, 3], "add images$"),
    ],
)
def test_a_small_class_is_left_out_only_where_others_are_enough(sizes: list[int], fix: str) -> None:
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(sizes))
    table = ImageTable(torch.zeros(len(labels), 4, 4, 1, dtype=torch.uint8), labels, tuple("abc"))
    with pytest.raises(DertsError, match=f"class 'b' .* needs 4: {fix}"):
        TaskPool.sample(table, tasks=1, way=2, shot=1, query=3, seed=0)


def test_a_split_of_one_class_is_told_to_grow_and_not_to_lower_the_way() -> None:
    """A way of 1 would be refused in its turn."""
    table = ImageTable(torch.zeros(9, 4, 4, 1, dtype=torch.uint8), torch.zeros(9).long(), ("a",))
    with pytest.raises(DertsError, match=r"offers 1: add classes, .*--split-fractions"):
        TaskPool.sample(table, tasks=1, way=2, shot=1, query=1, seed=0)
