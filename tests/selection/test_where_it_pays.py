"""derts selects where that can pay, and is random sampling, to the bit, where it cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from derts.cli import run
from derts.config import (
    TrainConfig,
)
from derts.config_file import PAPER, with_values
from derts.data import ImageTable
from derts.data.streaming import StreamedTable
from derts.report.page import make_report
from derts.selection.redundancy import EVEN
from derts.selection.strategy import Context, MetaBatch
from derts.tasks import TaskPool, TaskSampler, generator
from derts.training import Trainer, train
from derts.training.result import updates_at_random
from derts.training.run import open_trainer
from tests.tiny import tiny

pytestmark = pytest.mark.slow

Tables = dict[str, ImageTable]
CLEAN = tiny(
    data="glyphs-60x15",
    tasks={"shot": 2, "query": 3},
    model={"width": 8},
    learner={"name": "anil"},
    strategy={"name": "derts", "warmup": 3, "pool": 120, "ratio": 0.25},
    evaluation={"query": 5},
    updates=14,
    meta_batch=10,
    checkpoint_every=4,
)
SWAPPED = replace(
    CLEAN,
    tasks=replace(CLEAN.tasks, noise="swap"),
    strategy=replace(CLEAN.strategy, pool=160),  # enough for votes
)
VOTED = replace(  # enough for votes that leave nothing wrong
    CLEAN,
    tasks=replace(CLEAN.tasks, noise="swap:0.5"),
    strategy=replace(CLEAN.strategy, pool=240, ratio=1 / 6),
)


def trained(config: TrainConfig, tables: Tables, draw: Any = None) -> tuple[Trainer, list[Any]]:
    events: list[dict[str, Any]] = []
    trainer = Trainer(config, tables, events.append)
    if draw is not None:
        trainer.context.draw = draw(trainer.draw)
    trainer.train()
    return trainer, [event for event in events if event["event"] == "round"]


def alike(first: Trainer, second: Trainer) -> bool:
    pairs = zip(
        first.learner.state_dict().values(), second.learner.state_dict().values(), strict=True
    )
    return all(torch.equal(mine, other) for mine, other in pairs)


def with_strategy(config: TrainConfig, **values: Any) -> TrainConfig:
    return replace(config, strategy=replace(config.strategy, **values))


def test_clean_even_tasks_are_trained_on_as_random_sampling_would(letters: Tables) -> None:
    ours, rounds = trained(CLEAN, letters)
    random, _ = trained(with_strategy(CLEAN, name="random"), letters)
    always, selecting = trained(with_strategy(CLEAN, select="greedy"), letters)
    assert [event["update"] for event in selecting] == [3, 6, 9, 12]
    assert [(event["update"], event["random"]) for event in rounds] == [(3, 1), (6, 2), (12, 4)]
    assert all(event["evenness"] >= EVEN for event in rounds)
    assert all((event["selected"], event["kept"]) == (0, 30) for event in rounds)
    assert all(event["parts"]["select"] == "random" for event in rounds)
    assert all(event["effective_tasks"] == 30 for event in rounds)
    assert alike(ours, random)
    assert not alike(ours, always)
    assert not any("random" in event or "evenness" in event for event in selecting)


def test_voted_even_tasks_are_trained_on_as_random_votes_would(letters: Tables) -> None:
    config = replace(VOTED, updates=60)
    ours, rounds = trained(config, letters)
    votes, _ = trained(with_strategy(config, name="random-votes"), letters)
    always, _ = trained(with_strategy(config, select="greedy"), letters)
    assert alike(ours, votes)
    assert not alike(ours, always)
    assert all(event["parts"]["select"] == "random-votes" for event in rounds)
    assert not any("random" in event for event in rounds)  # these are tasks of the pool
    looked_at = [event["round"] for event in rounds if "evenness" in event]
    assert looked_at == [0, 1, 3, 7]  # and then 15


@pytest.mark.parametrize("until", [5, 13, 17])
def test_a_round_of_voted_tasks_is_resumed(until: int, letters: Tables) -> None:
    straight, rounds = trained(replace(VOTED, updates=24), letters)
    events: list[dict[str, Any]] = []
    first = Trainer(straight.config, letters, events.append)
    first.train(until=until)
    second = Trainer(straight.config, letters, events.append)
    second.load_state_dict(first.state_dict())
    second.train()
    assert alike(second, straight)
    looks = [["evenness" in event for event in made if event["event"] == "round"]
             for made in (rounds, events)]  # fmt: skip
    assert looks[0] == looks[1]


def test_wrong_labels_that_are_not_voted_on_are_no_reason_to_select(letters: Tables) -> None:
    config = with_strategy(SWAPPED, votes=False)
    ours, rounds = trained(config, letters)
    random, _ = trained(with_strategy(SWAPPED, name="random"), letters)
    assert all(event["parts"]["select"] == "random" for event in rounds)
    assert alike(ours, random)


def test_tasks_that_repeat_each_other_are_a_reason_to_select(letters: Tables) -> None:
    def repeating(draw: Any) -> Any:
        def drawn(tasks: int, purpose: str, number: int, pool_images: int = 0) -> Any:
            pool = draw(tasks, purpose, number, pool_images)
            which = torch.arange(tasks)
            which[tasks // 10 :] %= 3  # nine in ten are one of three
            return pool[which]

        return drawn

    def nameless(draw: Any) -> Any:
        repeated = repeating(draw)
        return lambda *about: replace(repeated(*about), classes=None)

    config = with_strategy(CLEAN, drop="none")
    _, rounds = trained(config, letters, repeating)  # their classes tell
    assert not any("random" in event or "evenness" in event for event in rounds)
    _, rounds = trained(with_strategy(config, votes=False), letters, nameless)
    assert not any("random" in event for event in rounds)
    assert all(event["evenness"] < EVEN / 2 for event in rounds)


def test_where_few_classes_are_in_most_tasks_they_are_balanced(letters: Tables) -> None:
    def mostly_common(draw: Any) -> Any:
        def drawn(tasks: int, purpose: str, number: int, pool_images: int = 0) -> Any:
            seed = (purpose, number)
            many = common.draw(tasks=tasks - tasks // 8, way=5, shot=2, query=3, seed=(*seed, 1))
            few = rare.draw(tasks=tasks // 8, way=5, shot=2, query=3, seed=(*seed, 2))
            order = torch.randperm(tasks, generator=generator(seed))
            return TaskPool.concatenate([many, few])[order]

        return drawn

    names = letters["train"].class_names
    common, rare = (TaskSampler(letters["train"], part) for part in (names[:6], names[6:]))
    shares: list[float] = []

    def watched(trainer: Trainer) -> Trainer:
        choose = trainer.strategy.next_batch

        def next_batch(context: Context) -> MetaBatch:
            batch = choose(context)
            assert batch.pool.classes is not None
            if context.update >= 3:
                assert batch.weights is not None
                assert batch.weights.unique().tolist() == [1.0]
                shares.append(float((batch.pool.classes >= 6).any(1).float().mean()))
            return batch

        trainer.strategy.next_batch = next_batch  # type: ignore[method-assign]
        return trainer

    events: list[dict[str, Any]] = []
    trainer = watched(Trainer(CLEAN, letters, events.append))
    trainer.context.draw = mostly_common(trainer.draw)
    trainer.train()
    rounds = [event for event in events if event["event"] == "round"]
    assert [event["looks_noisy"] for event in rounds] == [0] * len(rounds)
    assert all(event["parts"]["balance"] and "random" not in event for event in rounds)
    assert sum(shares) / len(shares) > 0.5  # of one in eight
    _, rounds = trained(with_strategy(CLEAN, balance=False), letters, mostly_common)
    assert not any(event["parts"]["balance"] for event in rounds)


def test_the_papers_method_always_selects(letters: Tables) -> None:
    _, rounds = trained(with_values(CLEAN, {"strategy": PAPER}, "paper"), letters)
    assert rounds
    assert all(event["selected"] == 30 for event in rounds)


@pytest.mark.parametrize("until", [4, 6, 8, 11])
def test_a_round_of_random_tasks_is_resumed(until: int, letters: Tables) -> None:
    config = CLEAN
    straight, rounds = trained(config, letters)
    assert all(event["random"] for event in rounds)
    events: list[dict[str, Any]] = []
    first = Trainer(config, letters, events.append)
    first.train(until=until)
    second = Trainer(config, letters, events.append)
    second.load_state_dict(first.state_dict())
    second.train()
    assert alike(second, straight)
    looks = [[(event["update"], event["random"]) for event in made if event["event"] == "round"]
             for made in (rounds, events)]  # fmt: skip
    assert looks[0] == looks[1]


def test_looks_grow_rare_on_random_looks_and_frequent_again_on_others(letters: Tables) -> None:
    def repeating_once(draw: Any) -> Any:
        """Most tasks of pool 3 are one of three."""

        def drawn(tasks: int, purpose: str, number: int, pool_images: int = 0) -> Any:
            pool = draw(tasks, purpose, number, pool_images)
            if (purpose, number) != ("pool", 3):
                return pool
            which = torch.arange(tasks)
            which[tasks // 10 :] %= 3
            return pool[which]

        return drawn

    config = replace(with_strategy(CLEAN, pool=160, ratio=0.125), updates=32)  # enough for votes
    _, rounds = trained(config, letters, repeating_once)
    looks = [(event["update"], event.get("random", 0)) for event in rounds]
    assert looks == [(3, 1), (5, 2), (9, 4), (17, 0), (19, 1), (21, 2), (25, 4)]
    assert updates_at_random(rounds, 32) == (27, 29)


@pytest.mark.parametrize(
    "values", [{"random_batches": -1}, {"random_batches": 10**9}, {"random_batches": 1.5},
               {"random_looks": -1}, {"random_looks": "x"}, {"random_looks": 99},
               {"random_rounds": -1}, {"random_rounds": 8}, {"random_rounds": None}],
)  # fmt: skip
def test_an_impossible_state_is_refused(values: dict[str, Any], letters: Tables) -> None:
    trainer = Trainer(CLEAN, letters)
    trainer.train(until=8)
    state = trainer.strategy.state_dict()
    trainer.strategy.load_state_dict(state)
    with pytest.raises(ValueError, match="impossible"):
        trainer.strategy.load_state_dict(state | values)


def test_streamed_images_are_prefetched_for_random_tasks_too(
    letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _ = trained(CLEAN, letters)
    monkeypatch.setattr("derts.data.streaming.image_memory", lambda device: 0)
    streamed, rounds = trained(CLEAN, letters)
    assert isinstance(streamed.images, StreamedTable)
    assert all(event["random"] for event in rounds)
    assert alike(streamed, plain)


def test_a_loop_that_does_not_count_its_updates_still_gets_rounds(letters: Tables) -> None:
    trainer = Trainer(with_strategy(CLEAN, warmup=0), letters)
    rounds: list[Any] = []
    context: Context = replace(trainer.context, log=rounds.append)
    batches: list[MetaBatch] = [trainer.strategy.next_batch(context) for _ in range(7)]
    assert [event["round"] for event in rounds if event["event"] == "round"] == [
        0,
        1,
    ]  # three batches, then six
    assert all(batch.weights is None and len(batch.pool) == 10 for batch in batches)


@pytest.mark.parametrize("way", [2, 3, 10])
def test_random_looks_of_any_way_are_told(way: int, letters: Tables) -> None:
    config = replace(CLEAN, tasks=replace(CLEAN.tasks, way=way))
    _, rounds = trained(config, letters)
    assert all(event["evenness"] > 0.7 for event in rounds)
    assert sum("random" in event for event in rounds) >= len(rounds) - 1


def test_a_run_folder_tells_what_a_round_was(tmp_path: Path) -> None:
    train(CLEAN, out=tmp_path / "run")
    trainer = open_trainer(tmp_path / "run")
    assert trainer.config.strategy.select == "where-it-pays"
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert '"random": 2' in events
    page = make_report([tmp_path / "run"]).page
    assert "random tasks were trained on until the next look at a pool, none" in page
    assert "Some of the pool" in page
    assert "Nothing was chosen: derts" in page
    assert "The pool as a map" not in page


def test_a_whole_pool_that_was_selected_is_no_round_of_random_tasks(tmp_path: Path) -> None:
    train(with_strategy(CLEAN, select="greedy", ratio=1.0, weights="none"), out=tmp_path / "run")
    page = make_report([tmp_path / "run"]).page
    assert "none preferred" not in page
    assert "Selected, largest γ first" in page


@pytest.mark.parametrize(
    ("select", "told"),
    [
        ("where-it-pays", "Tasks were drawn at random, because selecting does not pay here.\n"),
        ("greedy", "Tasks were selected by facility location.\n"),
    ],
)
def test_the_command_says_that_there_was_nothing_to_select(
    select: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--data", "glyphs-60x15", "--preset", "derts", "--learner.name", "anil", "--quiet",
        "--tasks.shot", "2", "--tasks.query", "3", "--model.width", "8", "--updates", "12",
        "--meta-batch", "10", "--evaluation.tasks", "5", "--evaluation.query", "3",
        "--strategy.warmup", "3", "--strategy.pool", "120", "--strategy.ratio", "0.25",
        "--strategy.select", select,
    ]  # fmt: skip
    assert run(["train", *words, "--out", str(tmp_path / "run")]) == 0
    assert told in capsys.readouterr().out
