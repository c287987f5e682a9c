"""derts selects where that can pay, and is random sampling, to the bit, where it cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from derts.cli import run
from derts.config import (
    EvaluationConfig,
    LearnerConfig,
    ModelConfig,
    StrategyConfig,
    TaskConfig,
    TrainConfig,
)
from derts.config_file import apply_presets
from derts.data import ImageTable
from derts.report.page import make_report
from derts.selection.choice import EVEN
from derts.selection.derts import left_over_chance
from derts.training import Trainer, train
from derts.training.run import open_trainer

Tables = dict[str, ImageTable]
CLEAN = TrainConfig(
    data="glyphs-60x15",
    tasks=TaskConfig(shot=2, query=3),
    model=ModelConfig(width=8),
    learner=LearnerConfig("anil"),
    strategy=StrategyConfig("derts", warmup=3, pool=120, ratio=0.25),
    evaluation=EvaluationConfig(tasks=20, query=5),
    updates=14,
    meta_batch=10,
    checkpoint_every=4,
    log_every=1,
)
SWAPPED = replace(
    CLEAN,
    tasks=replace(CLEAN.tasks, noise="swap"),
    strategy=replace(CLEAN.strategy, pool=160),  # enough for votes
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
    always, selecting = trained(with_strategy(CLEAN, selects="always"), letters)
    assert [event["update"] for event in rounds] == [3, 6, 9, 12]  # as often as with a choice
    assert [event["update"] for event in selecting] == [3, 6, 9, 12]
    assert all(event["random"] and event["left"] > EVEN for event in rounds)
    assert all(event["kept"] == event["effective_tasks"] == 120 for event in rounds)
    assert alike(ours, random)
    assert not alike(ours, always)
    assert not any("random" in event or "left" in event for event in selecting)


def test_labels_to_mend_are_a_reason_to_select(letters: Tables) -> None:
    ours, rounds = trained(SWAPPED, letters)
    always, _ = trained(with_strategy(SWAPPED, selects="always"), letters)
    assert not any("random" in event for event in rounds)
    assert alike(ours, always)


def test_tasks_that_repeat_each_other_are_a_reason_to_select(letters: Tables) -> None:
    def repeating(draw: Any) -> Any:
        def drawn(tasks: int, purpose: str, number: int, images: int = 0) -> Any:
            pool = draw(tasks, purpose, number, images)
            which = torch.arange(tasks)
            which[tasks // 10 :] %= 3  # nine in ten are one of three
            return pool[which]

        return drawn

    _, rounds = trained(with_strategy(CLEAN, drop_score="none"), letters, repeating)
    assert not any("random" in event for event in rounds)
    assert all(event["left"] < EVEN / 2 for event in rounds)


def test_noisy_tasks_that_are_dropped_are_a_reason_to_select(letters: Tables) -> None:
    config = with_strategy(CLEAN, drop_rule="quantile", drop_value=0.2)
    _, rounds = trained(config, letters)
    assert all(event["looks_noisy"] == 24 for event in rounds)
    assert not any("random" in event for event in rounds)


def test_the_papers_method_always_selects(letters: Tables) -> None:
    paper = apply_presets(["paper"], CLEAN)
    _, rounds = trained(paper, letters)
    assert all(event["selected"] == 30 for event in rounds)


@pytest.mark.parametrize("until", [4, 6, 8])
def test_a_round_of_random_tasks_is_resumed(until: int, tmp_path: Path, letters: Tables) -> None:
    straight, _ = trained(CLEAN, letters)
    first = Trainer(CLEAN, letters)
    first.train(until=until)
    second = Trainer(CLEAN, letters)
    second.load_state_dict(first.state_dict())
    second.train()
    assert alike(second, straight)


def test_a_run_folder_tells_what_a_round_was(tmp_path: Path) -> None:
    train(CLEAN, out=tmp_path / "run")
    trainer = open_trainer(tmp_path / "run")
    assert trainer.config.strategy.selects == "where-it-pays"
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert '"random": true' in events
    page = make_report([tmp_path / "run"]).page
    assert "This pool is clean and even" in page
    assert "Some of the pool" in page


@pytest.mark.parametrize(
    ("selects", "told"),
    [
        ("where-it-pays", "derts, 3 of 3 rounds on random tasks: clean and even pools\n"),
        ("always", "derts\n"),
    ],
)
def test_the_command_says_that_there_was_nothing_to_select(
    selects: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--data", "glyphs-60x15", "--preset", "derts", "--learner.name", "anil", "--quiet",
        "--tasks.shot", "2", "--tasks.query", "3", "--model.width", "8", "--updates", "12",
        "--meta-batch", "10", "--evaluation.tasks", "5", "--evaluation.query", "3",
        "--strategy.warmup", "3", "--strategy.pool", "120", "--strategy.ratio", "0.25",
        "--strategy.selects", selects,
    ]  # fmt: skip
    assert run(["train", *words, "--out", str(tmp_path / "run")]) == 0
    assert f"strategy   {told}" in capsys.readouterr().out


def test_an_even_cloud_is_covered_little_better_than_by_chance() -> None:
    from derts import select

    random = torch.Generator().manual_seed(0)
    cloud = torch.randn(2000, 5, generator=random)
    picked = select(cloud, 600).indices
    assert EVEN < left_over_chance(cloud, picked, random) < 0.85
    heaps = torch.cat((cloud[:200], cloud[:3].repeat(600, 1)))
    assert left_over_chance(heaps, select(heaps, 600).indices, random) < 0.1
    assert left_over_chance(torch.zeros(9, 2), torch.tensor([0, 1]), random) == 1.0
