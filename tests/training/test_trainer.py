"""The trainer: it learns, it repeats itself, it goes on from its state, it judges."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from derts.config import TrainConfig
from derts.data import ImageTable, Table
from derts.data.streaming import StreamedTable
from derts.tasks import TaskPool
from derts.training import Trainer
from derts.training.checkpoint import load_checkpoint, save_checkpoint
from derts.training.step import StreamedBatch
from derts.training.task_drawer import evaluation_tasks
from tests.tiny import TINY, tiny
from tests.training.records import assert_same

Tables = dict[str, ImageTable]


def trained(config: TrainConfig, tables: Tables, until: int | None = None) -> Trainer:
    trainer = Trainer(config, tables)
    trainer.train(until)
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize(("name", "updates"), [("protonet", 80), ("anil", 80), ("maml", 60)])
def test_training_beats_the_untrained_model(name: str, updates: int, letters: Tables) -> None:
    config = tiny(
        tasks={"shot": 2, "query": 3},
        model={"width": 8},
        learner={"name": name, "distance_divisor": 4.0, "feature_scale": 1.0, "inner_lr": 0.3},
        optimiser={"lr": 0.01},
        evaluation={"tasks": 200 if name != "maml" else 60, "query": 5},
        updates=updates,
        meta_batch=4,
    )
    trainer = Trainer(config, letters)
    before = trainer.evaluate("test")
    trainer.train()
    after = trainer.evaluate("test")
    assert after.mean > before.mean + 2 * (before.interval + after.interval)


@pytest.mark.parametrize("name", ["protonet", "anil", "maml"])
def test_the_same_seed_gives_the_same_weights_to_the_bit(name: str, letters: Tables) -> None:
    config = tiny(learner={"name": name}, updates=3)
    first, second = (trained(config, letters).learner.state_dict() for _ in range(2))
    assert_same(first, second)
    other = trained(tiny(learner={"name": name}, updates=3, seed=1), letters).learner.state_dict()
    assert not all(torch.equal(value, other[key]) for key, value in first.items())


@pytest.mark.parametrize("purpose", ["batch", "pool"])
def test_the_seed_of_the_run_decides_its_tasks(purpose: str, letters: Tables) -> None:
    first, again, other = (Trainer(tiny(seed=seed), letters) for seed in (0, 0, 1))
    for number in (0, 1):
        drawn = first.draw(3, purpose, number)
        assert torch.equal(drawn.support, again.draw(3, purpose, number).support)
        assert not torch.equal(drawn.support, other.draw(3, purpose, number).support)


def test_training_moves_no_global_random_state(letters: Tables) -> None:
    before = torch.get_rng_state()
    trainer = trained(tiny(strategy={"name": "derts"}), letters)
    trainer.load_state_dict(trainer.state_dict())
    assert torch.equal(torch.get_rng_state(), before)


def test_the_optimiser_keeps_its_ways_when_a_state_of_another_device_is_loaded(
    letters: Tables,
) -> None:
    trainer = trained(TINY, letters, 2)
    state = copy.deepcopy(trainer.state_dict())
    (group,) = state["optimiser"]["param_groups"]
    group.update(lr=torch.tensor(0.5), fused=True, capturable=True)  # as a GPU leaves it
    other = Trainer(TINY, letters)
    other.load_state_dict(state)
    (found,) = other.optimiser.param_groups
    assert (type(found["lr"]), found["fused"], found["capturable"]) == (float, False, False)
    trainer.train(4)
    other.train(4)
    assert_same(other.learner.state_dict(), trainer.learner.state_dict())


def test_the_logging_interval_does_not_change_the_result(
    letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = trained(TINY, letters)
    monkeypatch.setattr("derts.training.trainer.LOG_EVERY", 3)
    assert_same(trained(TINY, letters).learner.state_dict(), first.learner.state_dict())


def test_the_learning_rate_falls_to_zero_by_a_cosine(letters: Tables) -> None:
    trainer = Trainer(tiny(optimiser={"lr": 0.1}), letters)
    for update, rate in ((0, 0.1), (6, 0.05), (12, 0.0)):
        trainer.update = update
        assert trainer.learning_rate() == pytest.approx(rate, abs=1e-12)


def test_progress_names_the_parts_that_act(letters: Tables) -> None:
    notes: list[str | None] = []
    events: list[dict[str, Any]] = []
    trainer = Trainer(tiny(strategy={"name": "derts"}), letters, events.append)
    trainer.train(3, lambda count=1, note=None, before=False: notes.append(note))
    (parts,) = [event["parts"] for event in events if event["event"] == "round"]
    assert notes[-1] is not None
    assert parts["select"].replace("balanced", "balance") in notes[-1]


def test_noise_reaches_training_but_never_evaluation(letters: Tables) -> None:
    noisy = tiny(tasks={"noise": "tasks:1"})
    assert float(Trainer(noisy, letters).draw(50, "x", 0).mislabelled().mean()) > 0.6
    assert float(evaluation_tasks(noisy, letters["test"]).mislabelled().max()) == 0


def test_bfloat16_runs_on_the_cpu(letters: Tables) -> None:
    trainer = trained(tiny(hardware={"precision": "bfloat16"}, updates=3), letters)
    assert trainer.evaluate("test").mean > 15


def test_evaluation_repeats_itself_keeps_no_graph_and_sends_a_split_once(
    letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    import derts.training.trainer as module

    placed: list[str] = []
    place = module.place_table  # type: ignore[attr-defined]

    def counted(images: Table, *rest: Any) -> Table:
        placed.append(images.split)
        return place(images, *rest)

    monkeypatch.setattr(module, "place_table", counted)
    trainer = Trainer(TINY, letters)
    assert trainer.evaluate("test") == trainer.evaluate("test")
    assert all(value.grad is None for value in trainer.learner.parameters())
    assert placed.count("test") == 1


@pytest.mark.parametrize("strategy", ["random", "derts"])
def test_judging_disturbs_nothing_and_survives_a_checkpoint(
    strategy: str, tmp_path: Path, letters: Tables
) -> None:
    config = tiny(
        strategy={"name": strategy}, optimiser={"lr": 0.3}, evaluation={"weights": "best"},
        validate_every=3,
    )  # fmt: skip
    first = trained(config, letters, 3)
    first.weights.validate()
    first.train(7)
    path = save_checkpoint(tmp_path, first.update, first.state_dict())
    before = copy.deepcopy(first.learner.state_dict())
    judged = first.weights.evaluate("test").accuracies
    assert judged != first.evaluate("test").accuracies
    assert_same(dict(first.learner.state_dict()), dict(before))
    second = Trainer(config, letters)
    second.load_state_dict(load_checkpoint(path))
    assert second.weights.evaluate("test").accuracies == judged
    first.train()
    second.train()
    assert_same(first.learner.state_dict(), second.learner.state_dict())


@pytest.mark.parametrize(("warmup", "counts"), [(6, [False, False, True]), (50, [False] * 3)])
def test_weights_of_the_warm_up_do_not_count(
    warmup: int, counts: list[bool], letters: Tables
) -> None:
    trainer = Trainer(
        tiny(strategy={"warmup": warmup}, evaluation={"weights": "best"}, validate_every=3), letters
    )
    found = []
    for update in (3, 6, 9):
        trainer.train(update)
        trainer.weights.validate()
        found.append(trainer.weights.best is not None)
    assert found == counts
    trainer.train()
    trainer.weights.validate()
    assert trainer.weights.best is not None  # at the end there are no others


def test_the_last_weights_count_unless_asked_otherwise(letters: Tables) -> None:
    trainer = trained(tiny(validate_every=5), letters, 5)
    trainer.weights.validate()
    trainer.train()
    assert not trainer.weights.validation_is_due()
    assert trainer.weights.evaluate("test").accuracies == trainer.evaluate("test").accuracies


def test_streamed_images_arrive_where_a_recording_reads_them(letters: Tables) -> None:
    table = letters["train"]
    streamed = StreamedTable.of(table, torch.device("cpu"))
    first, second = (
        TaskPool.sample(table, tasks=2, way=3, shot=1, query=2, seed=seed) for seed in (0, 1)
    )
    arrived = StreamedBatch(streamed, first)
    for pool in (first, second):
        placed = arrived.take(pool)
        for name in ("support", "query"):
            found = arrived.table.gather(getattr(placed, name))
            assert torch.equal(found, table.gather(getattr(pool, name)))
        assert placed.way == 3
