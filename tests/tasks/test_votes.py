"""Labels mended by what an image is called in other tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from derts.data import ImageTable
from derts.errors import DertsError
from derts.tasks import LabelVotes, Noise, SwapNoise, TaskNoise, TaskPool


@pytest.fixture
def table() -> ImageTable:
    labels = torch.arange(240) // 20
    return ImageTable(torch.zeros(240, 2, 2, 1, dtype=torch.uint8), labels, tuple("abcdefghijkl"))


def drawn(table: ImageTable, noise: Noise | None, seed: int = 0) -> TaskPool:
    return TaskPool.sample(table, tasks=300, way=5, shot=3, query=7, seed=seed, noise=noise)


def voted(pool: TaskPool, *others: TaskPool) -> TaskPool:
    votes = LabelVotes(240, 12)
    for other in (*others, pool):
        votes.add(other)
    return votes.mended(pool)


@pytest.mark.parametrize("noise", [SwapNoise(2.8), TaskNoise(0.6)])
def test_noise_that_each_task_draws_anew_is_mended(table: ImageTable, noise: Noise) -> None:
    pool = drawn(table, noise)
    mended = voted(pool, *(drawn(table, noise, seed) for seed in (1, 2)))
    assert float(pool.mislabelled().mean()) > 0.35
    assert float(mended.mislabelled().mean()) < 0.005
    # the true class of an image is its own label in the table: nothing else is called right
    assert pool.classes is not None
    for images, true in (
        (mended.support, mended.true_support_labels),
        (mended.query, mended.true_query_labels),
    ):
        assert torch.equal(pool.classes.gather(1, true), table.labels[images])


def test_every_class_has_its_shots_again(table: ImageTable) -> None:
    noise = SwapNoise(2.8)
    pool = drawn(table, noise)
    mended = voted(pool, *(drawn(table, noise, seed) for seed in (1, 2, 3, 4)))
    whole = mended.mislabelled() == 0
    assert float(whole.float().mean()) > 0.95
    shots = torch.stack([torch.bincount(row, minlength=5) for row in mended.support_labels])
    assert bool((shots == 3).all())
    before = torch.cat((pool.support, pool.query), 1).sort(1).values
    assert torch.equal(torch.cat((mended.support, mended.query), 1).sort(1).values, before)
    assert mended.support.shape == pool.support.shape


def test_clean_labels_and_labels_wrong_in_the_data_itself_stay(table: ImageTable) -> None:
    clean = drawn(table, None)
    assert voted(clean, drawn(table, None, 1)) is clean
    random = torch.Generator().manual_seed(0)
    wrong = replace(table, labels=table.labels[torch.randperm(240, generator=random)])
    pool = drawn(wrong, None)
    assert voted(pool, drawn(wrong, None, 1)) is pool


def test_ties_stay_as_given_and_a_class_short_of_images_keeps_the_split() -> None:
    def pool(labels: list[int]) -> TaskPool:
        given = torch.tensor([labels])
        images = torch.tensor([[0, 1, 2, 3]])
        return TaskPool(
            images[:, :2], given[:, :2], images[:, 2:], given[:, 2:], given[:, :2], given[:, 2:],
            way=2, classes=torch.tensor([[0, 1]]),
        )  # fmt: skip

    votes = LabelVotes(4, 2)
    votes.add(pool([0, 1, 0, 1]))
    votes.add(pool([1, 1, 0, 1]))  # one vote each for the first image
    assert votes.mended(pool([1, 1, 0, 1])) == pool([1, 1, 0, 1])
    votes.add(pool([1, 1, 1, 1]))
    votes.add(pool([1, 1, 1, 1]))
    votes.add(pool([1, 1, 1, 1]))
    mended = votes.mended(pool([0, 1, 0, 1]))  # all four are called 1: no shot of 0 is left
    assert torch.equal(mended.support, torch.tensor([[0, 1]]))
    assert torch.equal(mended.query_labels, torch.tensor([[1, 1]]))


def test_pools_without_classes_are_refused(table: ImageTable) -> None:
    with pytest.raises(DertsError, match="votes need the classes"):
        LabelVotes(240, 12).add(replace(drawn(table, None), classes=None))


def test_many_votes_do_not_overflow(table: ImageTable) -> None:
    votes = LabelVotes(240, 12)
    pool = drawn(table, None)
    votes.counts.fill_(31_990)
    votes.add(pool)
    votes.add(pool)
    assert int(votes.counts.min()) >= 31_990
