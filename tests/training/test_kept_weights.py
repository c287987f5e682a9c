"""Earlier weights count where labels look wrong and training overfits them."""

from typing import Any

import pytest
import torch

from derts.evaluation import Evaluation
from derts.training.checkpoint import best_weights
from derts.training.driver import Driver
from derts.training.label_looks import look_updates
from derts.training.trainer import Trainer
from tests.tiny import tiny
from tests.training.test_label_looks import TRUE, config, table, wrong_labels

POINTS = [10, 20, 40, 80, 160, 200]


def trainer(labels: torch.Tensor, **changes: Any) -> Trainer:
    tables = {"train": table(labels), "test": table(TRUE, "test"), "val": table(TRUE, "val")}
    return Trainer(config(**changes), tables)


def overfits(found: Trainer, monkeypatch: pytest.MonkeyPatch, lost: float) -> list[int]:
    """Let accuracy on validation classes rise until update 40 and fall by `lost` until the end."""
    asked: list[int] = []
    measured = found.evaluate

    def evaluate(split: str, learner: Any = None, most: int | None = None) -> Evaluation:
        if split != "val":
            return measured(split, learner, most)
        assert most == found.weights.tasks
        asked.append(found.update)
        past = max(found.update - 40, 0) / (200 - 40)
        accuracy = 40 + min(found.update, 40) / 2 - lost * past
        return Evaluation((accuracy, accuracy + 1, accuracy - 1), "val")

    monkeypatch.setattr(found, "evaluate", evaluate)
    return asked


def test_earlier_weights_are_kept_where_wrong_labels_are_overfitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped = trainer(wrong_labels())
    stopped.train(40)
    expected = {name: value.clone() for name, value in stopped.learner.state_dict().items()}
    found = trainer(wrong_labels())
    asked = overfits(found, monkeypatch, lost=10.0)
    driver = Driver(found)
    result = driver.drive()
    assert asked == POINTS
    assert result["weights_of_update"] == 40
    (note,) = [text for text in result["notes"] if "overfitted" in text]
    assert "the weights of update 40 are kept (60.0% on validation classes, 50.0% at the" in note
    assert found.weights.kept is not None
    for name, value in found.weights.kept["weights"].items():
        assert torch.equal(value, expected[name]), name


def test_the_last_weights_count_where_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    found = trainer(wrong_labels())
    overfits(found, monkeypatch, lost=0.0)
    result = Driver(found).drive()
    assert result["weights_of_update"] == 200
    assert not any("overfitted" in text for text in result["notes"])


@pytest.mark.parametrize(
    ("labels", "changes"),
    [
        (TRUE, {}),  # nothing looks wrong
        (wrong_labels(), {"evaluation": {"weights": "last"}}),
        (wrong_labels(), {"strategy": {"name": "derts", "pool": 8, "judge": "none"}}),
        (wrong_labels(), {"strategy": {"name": "random"}}),
    ],
)
def test_nothing_is_looked_at_otherwise(
    labels: torch.Tensor, changes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = trainer(labels, **changes)
    asked = overfits(found, monkeypatch, lost=10.0)
    assert Driver(found).drive()["weights_of_update"] == 200
    assert asked == []


def test_without_validation_classes_the_last_weights_count_and_a_note_says_so() -> None:
    tables = {"train": table(wrong_labels()), "test": table(TRUE, "test")}
    found = Trainer(config(), tables)
    assert found.weights.points == set()
    notes = Driver(found).drive()["notes"]
    assert any("too few validation classes to tell when training overfits" in one for one in notes)
    narrow = {**tables, "val": table(TRUE, "val")}
    assert Trainer(config(evaluation={"query": 200}), narrow).weights.points == set()


def test_a_run_goes_on_with_the_best_weights_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = trainer(wrong_labels()), trainer(wrong_labels())
    for found in (first, second):
        overfits(found, monkeypatch, lost=10.0)
    Driver(first, until=60).drive()
    second.load_state_dict(first.state_dict())
    result = Driver(second).drive()
    assert result["weights_of_update"] == 40


def test_few_images_are_judged_sooner() -> None:
    long = tiny(updates=3000, meta_batch=32, tasks={"way": 5, "shot": 5, "query": 15})
    assert look_updates(long, 38_400) == [150, 450, 900, 1500]
    assert look_updates(long, 21_333) == [100, 150, 450, 900, 1500]
    assert look_updates(long, 9_600) == [45, 90, 150, 450, 900, 1500]
    assert look_updates(long, 100) == [30, 60, 120, 150, 450, 900, 1500]  # never before 30


def test_the_choice_takes_little_of_a_runs_time() -> None:
    small = trainer(wrong_labels())  # 200 updates of 2 tasks of 15 images
    images = len(small.weights.points) * small.weights.tasks * 3 * (2 + 3)
    assert small.weights.tasks == 20  # no fewer
    long = trainer(wrong_labels(), updates=5000)
    images = len(long.weights.points) * long.weights.tasks * 3 * (2 + 3)
    assert 0.04 < images / 3 / (5000 * 2 * 15) < 0.06


def test_before_the_end_the_last_weights_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found = trainer(wrong_labels())
    overfits(found, monkeypatch, lost=10.0)
    assert Driver(found, until=100).drive()["weights_of_update"] == 100
    assert found.weights.best is not None
    judged, last = best_weights(found.state_dict()), found.learner.state_dict()
    assert all(torch.equal(judged[name], last[name]) for name in last)


def test_an_extended_run_remembers_its_best_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    short = trainer(wrong_labels(), updates=200)
    overfits(short, monkeypatch, lost=0.0)
    Driver(short).drive()
    assert short.weights.kept is None
    long = trainer(wrong_labels(), updates=300)
    long.load_state_dict(short.state_dict())
    assert long.looks is not None
    assert short.looks is not None
    assert long.looks.updates == short.looks.updates  # no more looks
    overfits(long, monkeypatch, lost=10.0)
    assert Driver(long).drive()["weights_of_update"] == 40


def test_features_that_judge_before_a_short_run_begins_choose_weights_too() -> None:
    strategy = {"name": "derts", "pool": 8, "judge": "features"}
    found = trainer(wrong_labels(), strategy=strategy, updates=9)
    assert found.weights.points == {1, 2, 4, 8, 9}
    assert Driver(found).drive()["updates"] == 9


def test_validation_that_is_asked_for_changes_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (trainer(wrong_labels(), validate_every=every) for every in (0, 20))
    results = [Driver(one).drive() for one in (first, second)]
    assert results[0]["weights_of_update"] == results[1]["weights_of_update"]
    assert first.weights.best is not None
    assert second.weights.best is not None
    assert first.weights.best["accuracy"] == second.weights.best["accuracy"]
