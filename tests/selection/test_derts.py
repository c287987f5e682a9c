"""The strategy in the trainer."""

import copy
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from derts.config import LearnerConfig, StrategyConfig, TrainConfig
from derts.config_file import PAPER, PRESETS, with_values
from derts.data import ImageTable
from derts.report.read import comparison_table
from derts.training import Trainer
from derts.training.driver import Driver
from tests.tiny import tiny

Tables = dict[str, ImageTable]

SMALL = tiny(
    tasks={"shot": 2, "query": 3, "noise": "tasks"},
    learner={"distance_divisor": 4.0},
    strategy={"name": "derts", "warmup": 3, "pool": 40, "select": "greedy"},
    meta_batch=4,
)


def trained(config: TrainConfig, tables: Tables) -> tuple[Trainer, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    trainer = Trainer(config, tables, events.append)
    trainer.train()
    return trainer, [event for event in events if event["event"] == "round"]


@pytest.mark.parametrize("name", ["protonet", "anil", pytest.param("maml", marks=pytest.mark.slow)])
@pytest.mark.parametrize("preset", ["paper", "paper-noisy", "derts"])
def test_every_preset_trains_every_learner(name: str, preset: str, letters: Tables) -> None:
    sizes = {"warmup": 2, "pool": 12, "ratio": 0.5}
    rule = {"strategy": {**PRESETS[preset]["strategy"], **sizes}}
    chosen = with_values(SMALL, rule, preset)
    config = replace(chosen, learner=LearnerConfig(name, inner_steps=1), updates=6)  # type: ignore[arg-type]
    trainer, rounds = trained(config, letters)
    assert trainer.update == 6
    assert rounds


def test_rounds_are_logged_with_time_weights_and_noise(letters: Tables) -> None:
    trainer, rounds = trained(SMALL, letters)
    assert rounds[0]["update"] == 3
    for event in rounds:
        assert {"embedding", "estimating", "selecting"} <= event["seconds"].keys()
        assert event["pool"] == 40
        assert event["kept"] <= event["selected"] == 20 or event["looks_noisy"] > 20
        assert event["largest_weight"] >= 1 >= event["effective_tasks"] / event["kept"]
        assert 0.2 < event["noise"]["pool"] < 0.8
        assert event["objective"] >= 0
    phases = trainer.clock.seconds
    assert phases["embedding"] > 0
    assert phases["tasks"] < phases["update"]


def test_the_warm_up_trains_on_what_random_sampling_would(letters: Tables) -> None:
    ours, theirs = (
        Trainer(SMALL, letters),
        Trainer(replace(SMALL, strategy=StrategyConfig("random", warmup=3)), letters),
    )
    ours.train(3)
    theirs.train(3)
    expected = theirs.learner.state_dict()
    for key, value in ours.learner.state_dict().items():
        assert torch.equal(value, expected[key])
    ours.train(4)
    theirs.train(4)
    first = next(iter(ours.learner.parameters()))
    assert not torch.equal(first, next(iter(theirs.learner.parameters())))


def test_no_strategy_reads_the_true_labels(letters: Tables) -> None:
    def with_wrong_truth(trainer: Trainer) -> Trainer:
        draw = trainer.draw

        def drawn(tasks: int, purpose: str, number: int, pool_images: int = 0) -> Any:
            pool = draw(tasks, purpose, number)
            lied = torch.zeros_like(pool.true_query_labels)
            return replace(pool, true_query_labels=lied)

        trainer.context.draw = drawn
        return trainer

    honest, lied = Trainer(SMALL, letters), with_wrong_truth(Trainer(SMALL, letters))
    honest.train()
    lied.train()
    expected = honest.learner.state_dict()
    for key, value in lied.learner.state_dict().items():
        assert torch.equal(value, expected[key])


@pytest.mark.slow
def test_a_comparison_shares_the_warm_up_and_pairs_seeds(tmp_path: Path, letters: Tables) -> None:
    results: dict[str, list[dict[str, Any]]] = {"random": [], "derts": [], "again": []}
    for seed, name in itertools.product((0, 1), results):
        strategy = replace(SMALL.strategy, name="random" if name == "random" else "derts")
        config = replace(SMALL, seed=seed, strategy=strategy)
        result = Driver(Trainer(config, letters), warmup=tmp_path / str(seed)).drive()
        assert 0 <= result["selection_share"] < 1
        assert (result["rounds"] > 0) == (name != "random")
        results[name].append(result)
    reached = {name: [one["accuracy"] for one in found] for name, found in results.items()}
    assert reached["derts"] == reached["again"]
    alone = Trainer(replace(SMALL, seed=1), letters)
    alone.train()
    assert reached["derts"][1] == pytest.approx(alone.evaluate("test").mean, abs=1e-3)
    rows = comparison_table(results)
    assert [row[0] for row in rows] == ["strategy", "random", "derts", "again"]
    assert "±" in rows[2][2]
    differences = {name: results[name] for name in ("derts", "again")}
    assert comparison_table(differences)[2][2] == "+0.00 ± 0.00"


@pytest.mark.parametrize("name", ["derts", "random-votes"])
def test_votes_relabel_swapped_labels_and_follow_from_the_seed(name: str, letters: Tables) -> None:
    noisy = replace(SMALL.tasks, noise="swap:1")
    strategy = replace(SMALL.strategy, name=name, pool=240)  # type: ignore[arg-type]
    config = replace(SMALL, tasks=noisy, strategy=strategy)
    whole, rounds = trained(config, letters)
    assert all(event["noise"]["pool"] > 0.1 for event in rounds)
    assert rounds[-1]["noise"]["kept"] < 0.2 * rounds[-1]["noise"]["pool"]
    assert all(event["parts"]["votes"]["relabelled"] > 0.1 for event in rounds)
    first, second = (Trainer(config, letters) for _ in range(2))
    first.train(6)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.train()
    for key, value in whole.learner.state_dict().items():
        assert torch.equal(second.learner.state_dict()[key], value), key


def test_votes_change_nothing_where_tasks_agree(letters: Tables) -> None:
    clean = replace(SMALL, tasks=replace(SMALL.tasks, noise="none"))
    without = replace(clean, strategy=replace(SMALL.strategy, votes=False))
    voted, plain = (trained(config, letters)[0] for config in (clean, without))
    for name, value in plain.learner.state_dict().items():
        assert torch.equal(voted.learner.state_dict()[name], value), name


@pytest.mark.parametrize("name", ["derts", "random-votes"])
def test_votes_that_cannot_work_are_told_once(name: str, letters: Tables) -> None:
    events: list[dict[str, Any]] = []
    strategy = replace(SMALL.strategy, name=name, pool=20, judge="none")  # type: ignore[arg-type]
    trainer = Trainer(replace(SMALL, strategy=strategy), letters, events.append)
    trainer.train()
    (note,) = [event for event in events if event["event"] == "note"]
    assert note["text"].startswith("no votes: an image of a pool is in 1.")
    rounds = [event for event in events if event["event"] == "round"]
    assert len(rounds) > 2
    assert all(event["parts"]["votes"] is None for event in rounds)


def test_the_parts_that_acted_are_told_by_name(letters: Tables) -> None:
    _, rounds = trained(SMALL, letters)
    for event in rounds:
        assert event["parts"].keys() == {"votes", "drop", "balance", "select"}
        assert event["parts"]["select"] == "facility-location"
        assert event["parts"]["drop"] == {"dropped": event["looks_noisy"] / 40}
    _, rounds = trained(with_values(SMALL, {"strategy": PAPER}, "paper"), letters)
    assert rounds
    assert all(event["parts"]["drop"] is None for event in rounds)
