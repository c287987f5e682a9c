"""Labels relabelled by what an image is called in other tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from derts.data import ImageTable
from derts.errors import DertsError
from derts.labels import relabel_by_votes, votes
from derts.tasks import Noise, SwapNoise, TaskNoise, TaskPool


@pytest.fixture
def table() -> ImageTable:
    labels = torch.arange(240) // 20
    return ImageTable(torch.zeros(240, 2, 2, 1, dtype=torch.uint8), labels, tuple("abcdefghijkl"))


def drawn(table: ImageTable, noise: Noise | None, tasks: int = 900) -> TaskPool:
    return TaskPool.sample(table, tasks=tasks, way=5, shot=3, query=7, seed=0, noise=noise)


@pytest.mark.parametrize("noise", [SwapNoise(2.8), TaskNoise(0.6)])
def test_noise_that_each_task_draws_anew_is_relabelled(
    table: ImageTable, noise: Noise, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = drawn(table, noise)
    relabelled = relabel_by_votes(pool)
    assert float(pool.mislabelled().mean()) > 0.35
    assert float(relabelled.mislabelled().mean()) < 0.005
    told = votes.majority_vote(pool).relabelled
    assert told == pytest.approx(float(pool.mislabelled().mean()), abs=0.01)
    # the true class of an image is its own label in the table: nothing else is called right
    assert pool.classes is not None
    for images, true in (
        (relabelled.support, relabelled.true_support_labels),
        (relabelled.query, relabelled.true_query_labels),
    ):
        assert torch.equal(pool.classes.gather(1, true), table.labels[images])
    monkeypatch.setattr(votes, "COUNTERS_PER_LABEL", 0)  # as for a table of very many classes
    assert relabel_by_votes(pool) == relabelled


def test_every_class_has_its_shots_again(table: ImageTable) -> None:
    pool = drawn(table, SwapNoise(2.8), tasks=1500)
    relabelled = relabel_by_votes(pool)
    assert float((relabelled.mislabelled() == 0).float().mean()) > 0.95
    shots = torch.stack([torch.bincount(row, minlength=5) for row in relabelled.support_labels])
    assert bool((shots == 3).all())
    before = torch.cat((pool.support, pool.query), 1).sort(1).values
    assert torch.equal(torch.cat((relabelled.support, relabelled.query), 1).sort(1).values, before)
    assert relabelled.support.shape == pool.support.shape


def test_clean_labels_and_labels_wrong_in_the_data_itself_stay(table: ImageTable) -> None:
    clean = drawn(table, None)
    assert relabel_by_votes(clean) is clean
    random = torch.Generator().manual_seed(0)
    wrong = replace(table, labels=table.labels[torch.randperm(240, generator=random)])
    pool = drawn(wrong, None)
    assert relabel_by_votes(pool) is pool


def test_ties_stay_as_given_and_a_class_short_of_images_keeps_the_split() -> None:
    def pool(*tasks: list[int]) -> TaskPool:
        given = torch.tensor(tasks)
        images = torch.tensor([[0, 1, 2, 3]]).expand(len(given), -1)
        classes = torch.tensor([[4, 9]]).expand(len(given), -1)
        return TaskPool(
            images[:, :2], given[:, :2], images[:, 2:], given[:, 2:], given[:, :2], given[:, 2:],
            way=2, classes=classes,
        )  # fmt: skip

    tied = pool(*[[0, 1, 0, 1], [1, 1, 0, 1]] * 4)  # as many votes each for the first image
    assert relabel_by_votes(tied) is tied
    few = pool(*[[1, 1, 1, 1]] * 6, [0, 1, 0, 1])  # too few tasks for votes to be trusted
    assert relabel_by_votes(few) is few
    relabelled = relabel_by_votes(pool(*[[1, 1, 1, 1]] * 7, [0, 1, 0, 1]))
    assert relabelled.support[7].tolist() == [0, 1]  # all four are called 1: no shot of 0 is left
    assert relabelled.query_labels[7].tolist() == [1, 1]


def test_pools_without_classes_are_refused(table: ImageTable) -> None:
    with pytest.raises(DertsError, match=r"votes need the classes .* --strategy\.no-votes"):
        relabel_by_votes(replace(drawn(table, None), classes=None))


def test_very_many_votes_for_one_image() -> None:
    small = ImageTable(
        torch.zeros(20, 2, 2, 1, dtype=torch.uint8), torch.arange(20) // 10, ("a", "b")
    )
    pool = TaskPool.sample(
        small, tasks=40_000, way=2, shot=1, query=9, seed=0, noise=SwapNoise(1.0)
    )
    assert float(relabel_by_votes(pool).mislabelled().max()) == 0
