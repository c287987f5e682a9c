"""The driver: points, a part of the way, a shared warm-up, stopping."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from derts.config import TrainConfig
from derts.data import ImageTable
from derts.errors import DertsError, InterruptedRunError
from derts.training import Trainer, train
from derts.training.checkpoint import checkpoint_files
from derts.training.driver import Driver
from derts.training.run import train_in
from derts.training.run_folder import Run, point_file
from tests.tiny import tiny
from tests.training.records import timeless

pytestmark = pytest.mark.slow

Tables = dict[str, ImageTable]
CONFIG = tiny(strategy={"name": "derts"}, validate_every=4, checkpoint_every=5)
RANDOM = replace(CONFIG, strategy=replace(CONFIG.strategy, name="random"))


def test_points_on_the_way_are_measured_and_kept(tmp_path: Path, letters: Tables) -> None:
    result = train_in(tmp_path / "run", CONFIG, letters, points=(6, 12))
    assert Run.open(tmp_path / "run").result() == result
    short = train(replace(CONFIG, updates=12), tables=letters, quiet=True)
    assert result["accuracies"] == short["accuracies"]
    for update in (6, 12):
        assert f'"updates": {update},' in point_file(tmp_path / "run", update).read_text()
    assert len(checkpoint_files(tmp_path / "run" / "checkpoints")) == 1
    again = train_in(tmp_path / "run", CONFIG, letters, points=(6, 12))
    assert again == result
    with pytest.raises(DertsError, match="went on past update 3 without being evaluated there"):
        train_in(tmp_path / "run", CONFIG, letters, until=3, points=(3, 12))


def test_a_run_goes_part_of_the_way_and_further_later(tmp_path: Path, letters: Tables) -> None:
    points = (6, 12)
    first = train_in(tmp_path / "run", CONFIG, letters, until=6, points=points)
    assert first["updates"] == 6
    assert Run.open(tmp_path / "run").result() is None
    last = train_in(tmp_path / "run", CONFIG, letters, points=points)
    whole = train_in(tmp_path / "whole", CONFIG, letters, points=points)
    assert last["accuracies"] == whole["accuracies"]
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")


def test_a_run_that_is_asked_to_stop_saves_and_goes_on(tmp_path: Path, letters: Tables) -> None:
    asked = iter([False] * 8 + [True] * 99)
    with pytest.raises(
        InterruptedRunError, match="interrupted at update 8: all is saved, run this"
    ):
        train_in(tmp_path / "run", CONFIG, letters, stopping=lambda: next(asked))
    assert Run.open(tmp_path / "run").result() is None
    result = train_in(tmp_path / "run", CONFIG, letters)
    whole = train(CONFIG, tmp_path / "whole", tables=letters, quiet=True)
    assert result["accuracies"] == whole["accuracies"]
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")


def test_a_result_comes_when_a_run_was_killed_before_writing_it(
    tmp_path: Path, letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("derts.training.driver.write_json", killed)
        with pytest.raises(SystemExit):
            train_in(tmp_path / "run", CONFIG, letters, points=(12,))
    result = train_in(tmp_path / "run", CONFIG, letters, points=(12,))
    assert result == Run.open(tmp_path / "run").result()
    assert point_file(tmp_path / "run", 12).exists()


def test_runs_begin_from_one_warm_up(tmp_path: Path, letters: Tables) -> None:
    shared = tmp_path / "warm"
    steps: list[int] = []

    def counted(config: TrainConfig) -> dict[str, Any]:
        trainer = Trainer(config, letters)
        step = trainer.step

        def count() -> Any:
            steps.append(trainer.update)
            return step()

        trainer.step = count  # type: ignore[method-assign]
        driver = Driver(trainer, warmup=shared)
        result = driver.drive()
        validated = [e["update"] for e in driver.events() if e["event"] == "validation"]
        assert validated == [4, 8, 12]
        return result

    for config in (RANDOM, CONFIG):
        alone = train(config, tables=letters, quiet=True)
        assert counted(config)["accuracies"] == alone["accuracies"]
    assert len(steps) == 12 + 10  # the second began after two updates of warm-up


def test_a_point_before_the_end_of_the_warm_up_is_not_skipped(
    tmp_path: Path, letters: Tables
) -> None:
    for config in (RANDOM, CONFIG):
        driver = Driver(Trainer(config, letters), points=(1,), warmup=tmp_path)
        driver.drive()
        (start,) = [event for event in driver.events() if event["event"] == "start"]
        assert start["update"] == 0


@pytest.mark.parametrize("weights", ["last", "best"])
def test_run_folders_that_share_a_warm_up_hold_what_each_run_gives_alone(
    weights: str, tmp_path: Path, letters: Tables
) -> None:
    base = replace(RANDOM, evaluation=replace(RANDOM.evaluation, weights=weights))  # type: ignore[arg-type]
    for name in ("random", "derts"):
        config = replace(base, strategy=replace(base.strategy, name=name))
        result = train_in(tmp_path / name, config, letters, warmup=tmp_path / "warm-up")
        alone = train(config, tables=letters, quiet=True)
        for key in ("weights_of_update", "accuracies"):
            assert result[key] == alone[key]
        assert Run.open(tmp_path / name).result() == result
