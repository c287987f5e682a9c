"""GradMatch: weights against scipy, picks against what they promise."""

import numpy as np
import pytest
from scipy.optimize import nnls

from derts.selection.gradmatch import match_gradients, non_negative_fit


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("rows", "dimensions", "k"), [(40, 5, 12), (30, 60, 10), (12, 3, 12)])
def test_weights_are_the_non_negative_least_squares_fit_on_the_chosen_support(
    seed: int, rows: int, dimensions: int, k: int
) -> None:
    gradients = np.random.default_rng(seed).normal(0.3, 1.0, (rows, dimensions))
    ridge = 0.1
    chosen, weights = match_gradients(gradients, k, ridge)
    level = ridge * np.square(gradients).sum() / rows
    matrix = np.vstack((gradients[chosen].T, np.sqrt(level) * np.eye(len(chosen))))
    target = np.concatenate((gradients.sum(0), np.zeros(len(chosen))))
    expected, _ = nnls(matrix, target)
    np.testing.assert_allclose(weights, expected, rtol=1e-6, atol=1e-8)
    assert len(set(chosen.tolist())) == len(chosen)
    assert (weights >= 0).all()


def test_more_picks_match_the_sum_better() -> None:
    gradients = np.random.default_rng(0).normal(0.2, 1.0, (60, 20))
    target = gradients.sum(0)
    errors = []
    for k in (1, 3, 9, 27):
        chosen, weights = match_gradients(gradients, k, ridge=1e-6)
        errors.append(float(np.linalg.norm(weights @ gradients[chosen] - target)))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.05 * np.linalg.norm(target)


def test_rows_that_cancel_still_give_a_selection() -> None:
    chosen, weights = match_gradients(np.zeros((5, 3)), 2)
    assert chosen.tolist() == [0, 1]
    assert weights.tolist() == [1.0, 1.0]


def test_a_bad_start_does_not_change_the_fit() -> None:
    rows = np.random.default_rng(4).normal(size=(9, 6))
    inner, target = rows @ rows.T + np.eye(9), rows @ rows.sum(0) - 2
    starts = [np.zeros(9, bool), np.ones(9, bool), np.arange(9) % 2 == 0]
    found = [non_negative_fit(inner, target, start) for start in starts]
    for weights in found[1:]:
        np.testing.assert_allclose(weights, found[0], atol=1e-9)
