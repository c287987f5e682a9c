"""The loop: it learns, it repeats itself, it records, it refuses."""

import copy
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from derts.config import (
    EvaluationConfig,
    HardwareConfig,
    LearnerConfig,
    ModelConfig,
    OptimiserConfig,
    StrategyConfig,
    TaskConfig,
    TrainConfig,
)
from derts.data import ImageTable
from derts.data.streaming import StreamedTable
from derts.errors import DertsError
from derts.tasks import TaskPool, with_augmentation
from derts.training import Trainer, resume, train
from derts.training.captured import Arrived
from derts.training.checkpoint import MAGIC, checkpoint_files, load_checkpoint, save_checkpoint
from derts.training.run import open_trainer
from derts.training.run_folder import Run

Tables = dict[str, ImageTable]

SMALL = TrainConfig(
    tasks=TaskConfig(shot=2, query=3),
    model=ModelConfig(width=8),
    learner=LearnerConfig(distance_divisor=4.0),
    evaluation=EvaluationConfig(tasks=60, query=5),
    updates=12,
    meta_batch=4,
    log_every=5,
    checkpoint_every=5,
)


def weights_after(config: TrainConfig, tables: Tables) -> dict[str, torch.Tensor]:
    trainer = Trainer(config, tables)
    trainer.train()
    return trainer.learner.state_dict()


@pytest.mark.parametrize("name", ["protonet", "anil", "maml"])
def test_training_beats_the_untrained_model(name: str, letters: Tables) -> None:
    config = replace(
        SMALL,
        learner=LearnerConfig(name=name, distance_divisor=4.0, feature_scale=1.0, inner_lr=0.3),  # type: ignore[arg-type]
        optimiser=OptimiserConfig(lr=0.01),
        evaluation=EvaluationConfig(tasks=200, query=5),
        updates=40,
    )
    trainer = Trainer(config, letters)
    before = trainer.evaluate("test")
    trainer.train()
    after = trainer.evaluate("test")
    assert after.mean > before.mean + 2 * (before.interval + after.interval)


@pytest.mark.parametrize("name", ["protonet", "anil", "maml"])
def test_the_same_seed_gives_the_same_weights_to_the_bit(name: str, letters: Tables) -> None:
    config = replace(SMALL, learner=LearnerConfig(name=name), updates=4)  # type: ignore[arg-type]
    first, second = weights_after(config, letters), weights_after(config, letters)
    assert all(torch.equal(value, second[key]) for key, value in first.items())
    other = weights_after(replace(config, seed=1), letters)
    assert not all(torch.equal(value, other[key]) for key, value in first.items())


def test_the_optimiser_keeps_its_ways_when_a_state_of_another_device_is_loaded(
    letters: Tables,
) -> None:
    trainer = Trainer(SMALL, letters)
    trainer.train(2)
    state = copy.deepcopy(trainer.state_dict())
    (group,) = state["optimiser"]["param_groups"]
    group.update(lr=torch.tensor(0.5), fused=True, capturable=True)  # as a GPU leaves it
    other = Trainer(SMALL, letters)
    other.load_state_dict(state)
    (found,) = other.optimiser.param_groups
    assert (type(found["lr"]), found["fused"], found["capturable"]) == (float, False, False)
    trainer.train(4)
    other.train(4)
    theirs = other.learner.state_dict()
    assert all(
        torch.equal(value, theirs[key]) for key, value in trainer.learner.state_dict().items()
    )


def test_memory_format_and_logging_interval_do_not_change_the_result(letters: Tables) -> None:
    plain = replace(SMALL, hardware=HardwareConfig(channels_last=False), log_every=3)
    first, second = weights_after(SMALL, letters), weights_after(plain, letters)
    for key, value in first.items():
        torch.testing.assert_close(value, second[key], rtol=1e-3, atol=1e-4)


def test_a_run_folder_holds_config_events_result_and_checkpoints(
    tmp_path: Path, letters: Tables
) -> None:
    config = replace(SMALL, validate_every=6)
    result = train(config, tmp_path / "run", tables=letters, quiet=True)
    run = Run.open(tmp_path / "run")
    assert run.config == config.resolved()
    events = list(run.events())
    assert [event["update"] for event in events if event["event"] == "update"] == [5, 6, 10, 12]
    assert [event["update"] for event in events if event["event"] == "validation"] == [6, 12]
    for event in events:
        if event["event"] == "update":
            assert event["seconds"]["update"] > 0
            assert event["images_per_second"] > 0
    assert json.loads((run.path / "result.json").read_text()) == result
    assert len(result["accuracies"]) == 60
    assert result["accuracy"] == pytest.approx(sum(result["accuracies"]) / 60, abs=1e-3)
    assert result["tasks_trained"] == 48
    kept = checkpoint_files(run.path / "checkpoints")
    assert [path.name for path in kept] == ["update-0000010.ckpt", "update-0000012.ckpt"]


def test_a_checkpoint_brings_the_trainer_back_to_the_bit(tmp_path: Path, letters: Tables) -> None:
    whole = Trainer(SMALL, letters)
    whole.train(7)
    path = save_checkpoint(tmp_path, whole.update, whole.state_dict())
    whole.train()
    later = Trainer(SMALL, letters)
    later.load_state_dict(load_checkpoint(path))
    later.train()
    expected = whole.learner.state_dict()
    for key, value in later.learner.state_dict().items():
        assert torch.equal(value, expected[key])


def test_a_trained_run_opens_again_with_its_accuracy(tmp_path: Path, letters: Tables) -> None:
    result = train(SMALL, tmp_path / "run", tables=letters, quiet=True)
    again = open_trainer(tmp_path / "run", letters).evaluate("test")
    assert list(again.accuracies) == result["accuracies"]


def test_the_learning_rate_falls_to_zero_by_a_cosine(letters: Tables) -> None:
    trainer = Trainer(replace(SMALL, optimiser=OptimiserConfig(lr=0.1)), letters)
    assert trainer.learning_rate() == pytest.approx(0.1)
    trainer.update = 6
    assert trainer.learning_rate() == pytest.approx(0.05)
    trainer.update = 12
    assert trainer.learning_rate() == pytest.approx(0.0, abs=1e-12)


def test_clipping_limits_the_step(letters: Tables) -> None:
    events: list[dict[str, Any]] = []
    config = replace(SMALL, optimiser=OptimiserConfig(clip=1e-9, lr=0.01), updates=1)
    Trainer(config, letters, events.append).train()
    assert events[0]["gradient_norm"] > 1e-6  # what is logged is the norm before clipping


def events_of(run: Path) -> list[dict[str, Any]]:
    """All events without what depends on the clock."""
    timed = ("seconds", "images_per_second")
    return [
        {key: value for key, value in event.items() if key not in timed}
        for event in Run.open(run).events()
        if event["event"] != "start"
    ]


def interrupt_at(update: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Trainer.step

    def interrupted(self: Trainer) -> torch.Tensor:
        if self.update == update:
            signal.raise_signal(signal.SIGINT)
        return step(self)

    monkeypatch.setattr(Trainer, "step", interrupted)


def test_an_interrupted_run_goes_on_to_the_bit(
    tmp_path: Path, letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(SMALL, strategy=StrategyConfig("derts", warmup=3, pool=40, ratio=0.5))
    whole = train(config, tmp_path / "whole", tables=letters, quiet=True)
    with monkeypatch.context() as patch:
        interrupt_at(6, patch)
        with pytest.raises(DertsError, match="interrupted at update 7: all is saved, go on with"):
            train(config, tmp_path / "run", tables=letters, quiet=True)
    again = resume(tmp_path / "run", tables=letters, quiet=True)
    assert again["accuracies"] == whole["accuracies"]
    assert events_of(tmp_path / "run") == events_of(tmp_path / "whole")
    with pytest.raises(DertsError, match="is finished"):
        resume(tmp_path / "run", tables=letters, quiet=True)


def test_an_interrupt_without_a_folder_says_that_nothing_was_kept(
    letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_at(2, monkeypatch)
    with pytest.raises(DertsError, match="nothing was kept"):
        train(SMALL, tables=letters, quiet=True)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, letters: Tables) -> None:
    train(replace(SMALL, updates=1), tmp_path / "run", tables=letters, quiet=True)
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace("width = 8", "width = 16"))
    with pytest.raises(DertsError, match="does not fit this config and data"):
        open_trainer(tmp_path / "run", letters)


@pytest.mark.parametrize("damage", ["truncated", "altered", "foreign", "not-ours"])
def test_a_damaged_checkpoint_is_refused(damage: str, tmp_path: Path, letters: Tables) -> None:
    path = save_checkpoint(tmp_path, 1, Trainer(SMALL, letters).state_dict())
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "altered":
        content[len(content) // 2] ^= 255
        path.write_bytes(content)
    elif damage == "foreign":
        path.write_text("hello")
    else:
        save_checkpoint(tmp_path, 1, {"weights": torch.zeros(2)})
    with pytest.raises(DertsError, match="damaged or not one of ours"):
        load_checkpoint(path)
    with pytest.raises(DertsError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "missing.pt")


def test_a_checkpoint_never_runs_code(tmp_path: Path) -> None:
    class Trick:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    path = save_checkpoint(tmp_path, 1, {"learner": Trick()})
    assert path.read_bytes().startswith(MAGIC)
    with pytest.raises(DertsError, match="damaged or not one of ours"):
        load_checkpoint(path)
    assert not (tmp_path / "ran").exists()


def test_the_run_folder_is_not_overwritten_unasked(tmp_path: Path, letters: Tables) -> None:
    short = replace(SMALL, updates=1)
    train(short, tmp_path / "run", tables=letters, quiet=True)
    with pytest.raises(DertsError, match="already exists: choose another --out or pass"):
        train(short, tmp_path / "run", tables=letters, quiet=True)
    train(short, tmp_path / "run", tables=letters, quiet=True, overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(DertsError, match=r"already exists: choose another --out$"):
        train(short, tmp_path / "mine", tables=letters, quiet=True, overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_impossible_settings_are_refused_before_anything_is_written(
    tmp_path: Path, letters: Tables
) -> None:
    for config, message in (
        (replace(SMALL, tasks=TaskConfig(way=500)), "way 500 needs"),
        (replace(SMALL, tasks=TaskConfig(shot=10)), "images but shot 10"),
        (replace(SMALL, evaluation=EvaluationConfig(split="exam")), "no split 'exam'"),
        (replace(SMALL, evaluation=EvaluationConfig(query=50)), "of 'test' has 12 images"),
        (replace(SMALL, tasks=TaskConfig(way=11, shot=2, query=3), validate_every=1), "way 11"),
        (replace(SMALL, hardware=HardwareConfig(device="quantum")), "quantum cannot be used"),
        (replace(SMALL, tasks=TaskConfig(class_budget=16)), "no class 'n0"),
    ):
        with pytest.raises(DertsError, match=message):
            train(config, tmp_path / "run", tables=letters, quiet=True)
        assert not (tmp_path / "run").exists()


def test_noise_reaches_training_but_never_evaluation(letters: Tables) -> None:
    noisy = replace(SMALL, tasks=TaskConfig(shot=2, query=3, noise="tasks", noisy_fraction=1.0))
    trainer = Trainer(noisy, letters)
    assert float(trainer.draw(50, "x", 0).mislabelled().mean()) > 0.7
    from derts.training.drawing import evaluation_tasks

    assert float(evaluation_tasks(noisy, letters["test"]).mislabelled().max()) == 0


def test_bfloat16_and_compile_options_run_on_the_cpu(letters: Tables) -> None:
    config = replace(SMALL, hardware=HardwareConfig(precision="bfloat16"), updates=3)
    trainer = Trainer(config, letters)
    trainer.train()
    assert trainer.evaluate("test").mean > 20


def test_training_keeps_memory_flat_in_evaluation(letters: Tables) -> None:
    trainer = Trainer(SMALL, letters)
    evaluation = trainer.evaluate("test")
    assert evaluation == trainer.evaluate("test")
    assert all(value.grad is None for value in trainer.learner.parameters())


def test_streamed_images_arrive_where_a_recording_reads_them(letters: Tables) -> None:
    table = letters["train"]
    streamed = StreamedTable.of(table, torch.device("cpu"))
    first, second = (
        TaskPool.sample(table, tasks=2, way=3, shot=1, query=2, seed=seed) for seed in (0, 1)
    )
    arrived = Arrived(streamed, with_augmentation(first, True, 2, 0))
    assert arrived.pool.augmentation is not None
    assert arrived.pool.augmentation.shape == (2, 9, 3)
    for pool in (first, second):
        arrived.take(pool)
        for name in ("support", "query"):
            found = arrived.table.gather(getattr(arrived.pool, name))
            assert torch.equal(found, table.gather(getattr(pool, name)))
    assert arrived.pool.way == 3
