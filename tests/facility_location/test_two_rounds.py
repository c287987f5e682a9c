"""Selection in shares: near the central answer, the same on every process."""

import pytest
import torch

from derts.errors import DertsError
from derts.facility_location import select, select_two_rounds, two_rounds


def clouds(count: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(1)
    centres = 3 * torch.randn(30, 4, generator=random)
    member = torch.randint(30, (count,), generator=random)
    return centres[member] + torch.randn(count, 4, generator=random)


@pytest.mark.parametrize("shares", [2, 5])
def test_the_objective_is_within_two_percent_of_the_central_one(shares: int) -> None:
    rows = clouds(4000)
    central, found = select(rows, 60), select_two_rounds(rows, 60, shares=shares)
    assert central.objective <= found.objective <= 1.02 * central.objective
    assert len(found.indices.unique()) == 60


def test_the_selection_describes_itself_truly() -> None:
    rows = clouds(500)
    found = select_two_rounds(rows, 20, shares=3)
    distances = torch.cdist(rows.double(), rows[found.indices].double())
    assert found.objective == pytest.approx(float(distances.min(1).values.sum()), rel=1e-5)
    assert torch.equal(found.weights, torch.bincount(found.assignment, minlength=20).float())
    assert float(found.weights.sum()) == 500
    assert bool((found.gains >= 0).all())


def test_distances_that_are_not_kept_give_the_same_picks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = clouds(600)
    kept = select_two_rounds(rows, 15, shares=2)
    monkeypatch.setattr(two_rounds, "KEPT_GIB", 0.0)
    again = select_two_rounds(rows, 15, shares=2)
    assert again.objective == pytest.approx(kept.objective, rel=1e-3)


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(DertsError, match="9 shares of gradients"):
        select_two_rounds(torch.zeros(8, 2), 2, shares=9)
    with pytest.raises(DertsError, match="k is 9; choose between"):
        select_two_rounds(torch.zeros(8, 2), 9, shares=2)
