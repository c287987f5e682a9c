"""One round's choice: each part on its own, on estimates made by hand."""

from dataclasses import replace

import pytest
import torch

from derts.config import StrategyConfig
from derts.errors import DertsError
from derts.facility_location import select
from derts.gradients import PoolEstimate
from derts.selection.choice import choose
from derts.selection.derts import pick_facilities
from derts.tasks import generator

PAPER = StrategyConfig(
    "derts",
    estimate="logit-theta",
    weights="counts",
    drop_score="norm",
    drop_rule="multiple",
    drop_when="after",
)
CLEAN = StrategyConfig("derts", weights="counts", drop_score="none")


def estimate(count: int = 200, noisy: int = 0, dim: int = 4, name: str = "logit") -> PoolEstimate:
    """Gradients around two centres; the last `noisy` tasks have large losses and gradients."""
    random = generator(3)
    gradients = torch.randn(count, dim, generator=random)
    losses = 1.0 + 0.1 * torch.randn(count, generator=random)
    if noisy:
        gradients[-noisy:] += 12.0
        losses[-noisy:] += 2.0
    return PoolEstimate({name: gradients}, losses, losses * 3, torch.rand(count, generator=random))


def test_a_clean_round_trains_on_exactly_what_facility_location_selects() -> None:
    found = estimate()
    choice = choose(CLEAN, found, meta_batch=8, seed=(0,), pick=pick_facilities)
    expected = select(found.gradients["logit"], 60)
    assert sorted(choice.kept.tolist()) == sorted(expected.indices.tolist())
    assert [len(batch) for batch in choice.batches] == [8] * 7 + [4]
    scale = expected.weights / expected.weights.mean()
    torch.testing.assert_close(choice.weights[expected.indices], scale)
    assert choice.weights[choice.kept].mean() == pytest.approx(1.0, abs=1e-5)
    assert choice.objective == pytest.approx(expected.objective)
    assert choice.threshold is None
    record = choice.record()
    assert record["kept"] == record["selected"] == 60
    assert 1 <= record["effective_tasks"] <= 60


def test_dropping_before_selecting_keeps_noisy_tasks_out() -> None:
    config = StrategyConfig("derts", drop_rule="automatic", drop_when="before")
    choice = choose(config, estimate(noisy=120), meta_batch=8, seed=(0,), pick=pick_facilities)
    assert int(choice.drop.sum()) == 120
    assert int(choice.kept.max()) < 80
    assert len(choice.kept) == 60


def test_fewer_good_tasks_than_wanted_are_all_used() -> None:
    config = StrategyConfig("derts", ratio=0.5, drop_rule="automatic")
    choice = choose(config, estimate(noisy=150), meta_batch=8, seed=(0,), pick=pick_facilities)
    assert sorted(choice.kept.tolist()) == list(range(50))


def test_dropping_after_selecting_takes_the_weights_along() -> None:
    found = estimate(noisy=20, name="logit-theta")
    norms = found.gradients["logit-theta"].norm(dim=1)
    limit = 1.25 * norms.mean()
    choice = choose(PAPER, found, meta_batch=8, seed=(0,), pick=pick_facilities)
    whole = select(found.gradients["logit-theta"], 60)
    kept = [i for i in whole.indices.tolist() if norms[i] < limit]
    assert sorted(choice.kept.tolist()) == sorted(kept)
    assert len(choice.selected) == 60
    assert choice.threshold == pytest.approx(float(limit), rel=1e-5)
    survivors = torch.tensor([w for i, w in zip(whole.indices, whole.weights, strict=True)
                              if norms[i] < limit])  # fmt: skip
    order = torch.tensor(kept)
    torch.testing.assert_close(choice.weights[order], survivors / survivors.mean())


def test_coreset_batches_come_from_disjoint_parts_of_the_pool() -> None:
    config = replace(CLEAN, batching="coreset")
    choice = choose(config, estimate(), meta_batch=12, seed=(0,), pick=pick_facilities)
    assert [len(batch) for batch in choice.batches] == [12] * 5
    assert len(choice.kept.unique()) == 60
    for batch in choice.batches:  # each batch stands for its part with weights of mean 1
        assert choice.weights[batch].mean() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("engine", ["greedy", "lazy", "stochastic", "uniform"])
@pytest.mark.parametrize("weights", ["counts", "none", "calibrated"])
def test_every_engine_and_weighting_gives_a_valid_round(engine: str, weights: str) -> None:
    config = replace(CLEAN, engine=engine, weights=weights, weight_cap=3.0)  # type: ignore[arg-type]
    choice = choose(config, estimate(), meta_batch=8, seed=(0,), pick=pick_facilities)
    assert len(choice.kept.unique()) == 60
    assert float(choice.weights.min()) >= 0
    assert choice.weights[choice.kept].mean() == pytest.approx(1.0, abs=1e-5)
    again = choose(config, estimate(), meta_batch=8, seed=(0,), pick=pick_facilities)
    assert torch.equal(choice.kept, again.kept)
    other = choose(config, estimate(), meta_batch=8, seed=(1,), pick=pick_facilities)
    assert not torch.equal(choice.kept, other.kept)


def test_tasks_whose_estimate_is_not_finite_are_left_out() -> None:
    found = estimate()
    found.gradients["logit"][7] = float("nan")
    choice = choose(replace(CLEAN, ratio=1.0), found, meta_batch=8, seed=(0,), pick=pick_facilities)
    assert 7 not in choice.kept
    assert len(choice.kept) == 199


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_round_that_keeps_nothing_names_limit_and_scores(when: str) -> None:
    config = replace(PAPER, drop_when=when, drop_value=0.001)  # type: ignore[arg-type]
    with pytest.raises(DertsError, match=r"keeps none: the limit on norm is .* reach from"):
        choose(config, estimate(name="logit-theta"), meta_batch=8, seed=(0,), pick=pick_facilities)
