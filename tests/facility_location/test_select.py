"""The engines against naive loops, on inputs made to be awkward: ties, duplicates, extremes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import derts.facility_location.greedy as facility_greedy
from derts.facility_location import Engine, select
from derts.facility_location.distances import Distances
from derts.facility_location.greedy import candidate_places, greedy, lazy
from derts.facility_location.on_gpu import DeviceDistances
from derts.facility_location.selection import assign

Points = NDArray[np.float32]
ENGINES: tuple[Engine, ...] = ("greedy", "lazy", "stochastic")


@st.composite
def matrices(draw: st.DrawFn, largest: int = 40) -> Points:
    """Random rows; coarse ones are full of ties and duplicates."""
    count, dimensions = draw(st.integers(1, largest)), draw(st.sampled_from([1, 2, 5, 30]))
    generator = np.random.default_rng(draw(st.integers(0, 2**20)))
    points = generator.standard_normal((count, dimensions))
    if draw(st.booleans()):
        points = np.round(points)
    shift, scale = draw(st.sampled_from([0.0, 7.0])), draw(st.sampled_from([1e-6, 1.0, 1e6]))
    return ((points + shift) * scale).astype(np.float32)


@st.composite
def problems(draw: st.DrawFn, largest: int = 40) -> tuple[Points, int]:
    points = draw(matrices(largest))
    return points, draw(st.integers(1, len(points)))


def all_distances(points: Points) -> NDArray[np.float32]:
    distances = Distances(torch.from_numpy(points), 1.0)
    return distances.rows(np.arange(len(points)))


def naive_greedy(matrix: NDArray[np.float32], k: int) -> tuple[list[int], list[float]]:
    nearest = np.full(len(matrix), matrix.max(), np.float64)
    picks: list[int] = []
    gains: list[float] = []
    for _ in range(k):
        best, most = -1, -1.0
        for candidate in range(len(matrix)):
            gain = float(np.maximum(nearest - matrix[candidate], 0).sum())
            if candidate not in picks and gain > most:
                best, most = candidate, gain
        picks.append(best)
        gains.append(most)
        nearest = np.minimum(nearest, matrix[best])
    return picks, gains


@settings(max_examples=60, deadline=None)
@given(problems())
def test_greedy_and_lazy_are_the_naive_greedy_to_the_last_bit(problem: tuple[Points, int]) -> None:
    points, k = problem
    distances = Distances(torch.from_numpy(points), 1.0)
    expected = naive_greedy(all_distances(points), k)
    for picks, gains, _ in (greedy(distances, k, 1.0), lazy(distances, k)):
        assert (picks.tolist(), gains.tolist()) == expected


@settings(max_examples=60, deadline=None)
@given(problems(largest=60))
def test_lists_from_the_first_pick_on_are_the_naive_greedy(problem: tuple[Points, int]) -> None:
    points, k = problem
    distances = Distances(torch.from_numpy(points), 1.0)
    matrix = all_distances(points)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(facility_greedy, "LISTED_SHARE", 1.0)
        picks, gains, nearest = greedy(distances, k, 1.0)
    assert (picks.tolist(), gains.tolist()) == naive_greedy(matrix, k)
    assert nearest.tolist() == matrix[picks].min(0).tolist()


@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from(ENGINES), st.integers(0, 9))
def test_what_every_selection_promises(
    problem: tuple[Points, int], engine: Engine, seed: int
) -> None:
    points, k = problem
    selection = select(points, k, engine=engine, seed=seed)
    picks = selection.indices.tolist()
    assert len(set(picks)) == k
    assert float(selection.weights.sum()) == len(points)
    assert (selection.gains >= 0).all()
    if engine != "stochastic":
        assert (selection.gains.diff() <= 0).all()
    matrix = all_distances(points)
    counts = dict.fromkeys(picks, 0)
    for row in range(len(points)):
        owner = row if row in counts else min(picks, key=lambda pick: (matrix[row, pick], pick))
        counts[owner] += 1
        assert picks[int(selection.assignment[row])] == owner
    assert selection.weights.tolist() == list(counts.values())
    again = select(torch.from_numpy(points), k, engine=engine, seed=seed)
    assert again.to_json() == selection.to_json()


@settings(max_examples=25, deadline=None)
@given(problems(largest=9))
def test_greedy_reaches_the_share_of_the_optimum_it_must(problem: tuple[Points, int]) -> None:
    points, k = problem
    matrix = all_distances(points).astype(np.float64)
    ceiling = len(points) * matrix.max()
    best = max(
        ceiling - matrix[list(subset)].min(0).sum()
        for subset in itertools.combinations(range(len(points)), k)
    )
    picks, _, _ = greedy(Distances(torch.from_numpy(points), 1.0), k, 1.0)
    reached = ceiling - matrix[picks].min(0).sum()
    assert reached >= (1 - 1 / math.e) * best - 1e-9 * ceiling


@settings(max_examples=30, deadline=None)
@given(problems(), st.sampled_from(ENGINES))
def test_blocks_give_the_answer_of_the_kept_matrix(
    problem: tuple[Points, int], engine: Engine
) -> None:
    points, k = problem
    kept = select(points, k, engine=engine)
    blocked = select(points, k, engine=engine, memory_limit_gib=0)
    assert blocked.to_json() == kept.to_json()


@settings(max_examples=30, deadline=None)
@given(problems())
def test_what_a_gpu_works_with_is_what_the_cpu_has(problem: tuple[Points, int]) -> None:
    points, k = problem
    tensor = torch.from_numpy(points)
    distances = Distances(tensor, 1.0)
    picks, _, nearest = greedy(distances, k, 1.0)
    expected = assign(distances, picks, nearest).tolist()
    for limit, height in ((1.0, len(points)), (1.0, 3), (0.0, 3)):
        on_device = DeviceDistances(tensor, limit)
        on_device._height = height  # more than one block, if small
        if on_device.kept is not None:
            assert on_device.kept.tolist() == all_distances(points).tolist()
        found = on_device.assign(torch.from_numpy(picks), torch.from_numpy(nearest))
        assert found.tolist() == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize(("rows", "dimensions"), [(500, 5), (500, 100), (20_000, 5)])
def test_a_gpu_gives_the_answer_of_the_cpu(rows: int, dimensions: int) -> None:
    points = torch.randn(rows, dimensions, generator=torch.Generator().manual_seed(0))
    points = points.round(decimals=1)  # ties
    found, expected = select(points.cuda(), rows // 20), select(points, rows // 20)
    assert found.to_json() == expected.to_json()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize(("rows", "k"), [(500, 150), (500, 499), (3000, 900), (700, 30)])
def test_stochastic_greedy_on_a_gpu_gives_the_answer_of_the_cpu(rows: int, k: int) -> None:
    points = torch.randn(rows, 5, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    found = select(points.cuda(), k, engine="stochastic", epsilon=0.1)
    assert found.to_json() == select(points, k, engine="stochastic", epsilon=0.1).to_json()


@pytest.mark.parametrize(("k", "size"), [(3, 5), (12, 2), (1, 12)])
@pytest.mark.parametrize("together", [64, 0])
def test_candidates_are_different_rows_that_are_left_each_as_often(
    k: int, size: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facility_greedy, "MANY_CANDIDATES", together)
    epsilon = math.exp(-(size - 0.5) * k / 12)
    drawn = np.stack([candidate_places(12, k, epsilon, seed) for seed in range(2000)])
    assert drawn.shape == (2000, k, size)
    for number in range(k):
        of_pick = drawn[:, number, : 12 - number]
        assert all(len(set(row)) == len(row) for row in of_pick.tolist())
        left = 12 - number
        counts = np.bincount(of_pick.ravel(), minlength=left)
        assert len(counts) == left
        expected = counts.sum() / left
        assert ((counts - expected) ** 2 / expected).sum() < left + 6 * math.sqrt(2 * left)


@pytest.mark.parametrize("dimensions", [3, 40])
@pytest.mark.parametrize("memory_limit_gib", [0.0, 1.0])
def test_threads_blocks_and_lists_at_a_size_that_uses_them(
    dimensions: int, memory_limit_gib: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = torch.randn(700, dimensions, generator=torch.Generator().manual_seed(1))
    distances = Distances(points, memory_limit_gib)
    expected = naive_greedy(distances.rows(np.arange(700)), 60)
    for share in (1.0, 0.1, 0.0):
        monkeypatch.setattr(facility_greedy, "LISTED_SHARE", share)
        picks, gains, _ = greedy(distances, 60, 1.0)
        assert (picks.tolist(), gains.tolist()) == expected


@pytest.mark.parametrize("dimensions", [2, 24, 25, 300])
def test_distances_are_exact_symmetric_and_zero_for_duplicates(dimensions: int) -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(60, dimensions, generator=generator) * 1e-3 + 100
    points[30:40] = points[:10]
    points[40:50] = points[:10] + 1e-4
    expected = torch.cdist(
        points.double(), points.double(), compute_mode="donot_use_mm_for_euclid_dist"
    ).numpy()
    on_device = DeviceDistances(points, 1.0)
    assert on_device.kept is not None
    distances = Distances(points, 1.0)
    for matrix in (distances.rows(np.arange(60)), on_device.kept.numpy()):
        assert (matrix == matrix.T).all()
        assert (matrix[np.arange(10), np.arange(30, 40)] == 0).all()
        np.testing.assert_allclose(matrix * distances.scale, expected, rtol=1e-4, atol=1e-9)


def test_an_outlier_does_not_blur_the_rest() -> None:
    points = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    points[17] = 1e4
    with_outlier = select(points, 30)
    assert 17 in with_outlier.indices.tolist()
    rest = torch.cdist(points, points[with_outlier.indices]).min(1).values
    assert with_outlier.objective == pytest.approx(float(rest.double().sum()), rel=1e-4)


def test_lists_wait_until_they_fit_the_memory() -> None:
    points = torch.randn(300, 4, generator=torch.Generator().manual_seed(2))
    roomy = select(points, 90)
    assert select(points, 90, memory_limit_gib=1e-5).indices.tolist() == roomy.indices.tolist()


def test_stochastic_is_close_to_greedy_and_better_than_chance_on_clusters() -> None:
    generator = torch.Generator().manual_seed(3)
    centres = 10 * torch.randn(20, 5, generator=generator)
    points = centres.repeat_interleave(20, 0) + torch.randn(400, 5, generator=generator)
    exact = select(points, 40).objective
    random_rows = torch.randperm(400, generator=generator)[:40]
    chance = float(torch.cdist(points, points[random_rows]).min(1).values.sum())
    assert exact * 0.98 <= select(points, 40, engine="stochastic").objective <= exact * 1.25
    assert exact * 1.25 < chance
