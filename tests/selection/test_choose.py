"""One round's choice: each part of the method on its own, on estimates made by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from derts.config import StrategyConfig
from derts.config_file import PAPER, with_values
from derts.distributed import Group
from derts.errors import DertsError
from derts.facility_location import select
from derts.gradients import PoolEstimate
from derts.selection.derts import Derts
from derts.selection.round_record import round_event
from derts.selection.rounds import Choice, DrawnPool
from derts.tasks import TaskPool, generator

LITERAL = with_values(StrategyConfig(), PAPER, "preset paper")
PAPER_NOISY = replace(LITERAL, drop="paper", estimate="logit", select="greedy")
CLEAN = StrategyConfig("derts", weights="counts", drop="none", select="greedy")


def estimate(count: int = 200, noisy: int = 0, dim: int = 4) -> PoolEstimate:
    """Gradients around a centre; the last `noisy` tasks have large losses and gradients."""
    random = generator(3)
    gradients = torch.randn(count, dim, generator=random)
    losses = 1.0 + 0.1 * torch.randn(count, generator=random)
    if noisy:
        gradients[-noisy:] += 12.0
        losses[-noisy:] += 2.0
    return PoolEstimate({"logit": gradients}, losses, torch.rand(count, generator=random))


def drawn(count: int, relabelled: float | None = None) -> DrawnPool:
    labels = torch.zeros(count, 2, dtype=torch.long)
    pool = TaskPool(labels, labels, labels, labels, labels, labels, way=2)
    return DrawnPool(pool, pool, None, relabelled)


def choose(
    config: StrategyConfig, found: PoolEstimate, seed: int = 0, relabelled: float | None = None
) -> Choice:
    strategy: Any = Derts(config)
    strategy.estimate = lambda context, drawn: found
    context: Any = SimpleNamespace(meta_batch=8, group=Group())
    chosen: Choice = strategy.choose(context, drawn(len(found.losses), relabelled), (seed,))
    return chosen.settled()


def test_a_clean_round_trains_on_exactly_what_facility_location_selects() -> None:
    found = estimate()
    choice = choose(CLEAN, found)
    expected = select(found.gradients["logit"], 60)
    assert sorted(choice.kept.tolist()) == sorted(expected.indices.tolist())
    assert [len(batch) for batch in choice.batches] == [8] * 7 + [4]
    scale = expected.weights / expected.weights.mean()
    torch.testing.assert_close(choice.weights[expected.indices], scale)
    assert choice.weights[choice.kept].mean() == pytest.approx(1.0, abs=1e-5)
    assert choice.objective == pytest.approx(expected.objective)
    assert choice.threshold is None
    assert choice.select == "facility-location"
    numbers = round_event(drawn(200), choice)
    assert numbers["kept"] == numbers["selected"] == 60
    assert 1 <= numbers["effective_tasks"] <= 60


def test_dropping_before_selecting_keeps_noisy_tasks_out() -> None:
    choice = choose(replace(CLEAN, drop="automatic"), estimate(noisy=120))
    assert choice.drop is not None
    assert int(choice.drop.sum()) == 120
    assert int(choice.kept.max()) < 80
    assert len(choice.kept) == 60


def test_fewer_good_tasks_than_wanted_are_all_used() -> None:
    choice = choose(replace(CLEAN, drop="automatic", ratio=0.5), estimate(noisy=150))
    assert sorted(choice.kept.tolist()) == list(range(50))


def test_the_paper_drops_after_selecting_and_takes_the_weights_along() -> None:
    found = estimate(noisy=20)
    norms = found.gradients["logit"].norm(dim=1)
    limit = 1.25 * norms.mean()
    choice = choose(PAPER_NOISY, found)
    whole = select(found.gradients["logit"], 60)
    kept = [i for i in whole.indices.tolist() if norms[i] < limit]
    assert 0 < len(kept) < 60
    assert sorted(choice.kept.tolist()) == sorted(kept)
    assert len(choice.selected) == 60
    assert choice.threshold == pytest.approx(float(limit), rel=1e-5)
    counts = dict(zip(whole.indices.tolist(), whole.weights.tolist(), strict=True))
    survivors = torch.tensor([counts[i] for i in kept])
    torch.testing.assert_close(choice.weights[torch.tensor(kept)], survivors / survivors.mean())


@pytest.mark.parametrize("how", ["greedy", "stochastic", "uniform"])
@pytest.mark.parametrize("weights", ["counts", "none", "calibrated"])
def test_every_selection_and_weighting_gives_a_valid_round(how: str, weights: str) -> None:
    config = replace(CLEAN, select=how, weights=weights)  # type: ignore[arg-type]
    choice = choose(config, estimate())
    assert len(choice.kept.unique()) == 60
    assert float(choice.weights.min()) >= 0
    assert choice.weights[choice.kept].mean() == pytest.approx(1.0, abs=1e-5)
    assert torch.equal(choice.kept, choose(config, estimate()).kept)
    assert not torch.equal(choice.kept, choose(config, estimate(), seed=1).kept)


def test_tasks_whose_estimate_is_not_finite_are_left_out() -> None:
    found = estimate()
    found.gradients["logit"][7] = float("nan")
    choice = choose(replace(CLEAN, ratio=1.0), found)
    assert 7 not in choice.kept
    assert len(choice.kept) == 199
    found.losses[:] = float("nan")
    with pytest.raises(DertsError, match="none of a round's 200 tasks has finite numbers"):
        choose(CLEAN, found)


def test_a_round_that_keeps_nothing_names_limit_and_scores() -> None:
    found = estimate()
    found.gradients["logit"][:101] = 10.0  # one task stands for these, and is too long
    config = replace(PAPER_NOISY, ratio=0.005)
    with pytest.raises(DertsError, match=r"keeps none: the limit on the gradient norm is 1.*drop"):
        choose(config, found)


def test_each_reason_to_select_is_one_and_without_any_tasks_are_random() -> None:
    config = replace(CLEAN, select="where-it-pays", drop="automatic")
    even = choose(config, estimate())
    assert even.at_random
    assert even.evenness is not None
    assert even.evenness > 0.8
    assert even.weights.unique().tolist() == [1.0]
    assert len(even.selected) == 0
    voted = choose(config, estimate(), relabelled=0.01)
    assert not voted.at_random
    assert voted.select == "random-votes"
    assert voted.evenness == even.evenness
    assert len(voted.kept) == 60
    assert choose(config, estimate(), relabelled=0.0).at_random
    assert not choose(config, estimate(noisy=60)).at_random
    heaps = estimate()
    heaps.gradients["logit"][20:] = heaps.gradients["logit"][:3].repeat(60, 1)
    assert not choose(config, heaps).at_random
