"""Checkpoints: whole or refused, never run, never impossible; logs are on the disk before them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from derts.data import ImageTable
from derts.errors import DertsError
from derts.training import Trainer, resume, train
from derts.training.checkpoint import (
    MAGIC,
    checkpoint_files,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from derts.training.run import open_trainer
from tests.tiny import tiny
from tests.training.records import assert_same

Tables = dict[str, ImageTable]
State = dict[str, Any]


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def altered(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [cut, altered, lambda content: b"hello", lambda content: b""])
def test_a_damaged_checkpoint_is_refused_for_the_one_before(
    damage: Callable[[bytes], bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {"learner": {"weight": torch.arange(100.0)}}
    before, newest = (save_checkpoint(tmp_path, update, state) for update in (1, 2))
    newest.write_bytes(damage(newest.read_bytes()))
    with pytest.raises(DertsError, match="damaged or not one of ours"):
        load_checkpoint(newest)
    found = newest_checkpoint(tmp_path)
    said = capsys.readouterr().err
    assert found is not None
    assert found[0] == before
    assert_same(found[1], state)
    assert "is damaged" in said
    assert f"going on from the one before it, {before.name}" in said
    before.unlink()
    with pytest.raises(DertsError, match="there is none before it that is whole"):
        newest_checkpoint(tmp_path)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DertsError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "missing.ckpt")
    with pytest.raises(DertsError, match="it holds no learner"):
        load_checkpoint(save_checkpoint(tmp_path, 1, {"weights": torch.zeros(2)}))
    for state in ({"learner": 5}, {"learner": {}, "best": 5}, {"learner": {}, "best": {"x": 5}}):
        with pytest.raises(DertsError, match="damaged or not one of ours"):
            load_checkpoint(save_checkpoint(tmp_path, 1, state))


def test_a_checkpoint_never_runs_code(tmp_path: Path) -> None:
    class Trick:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    path = save_checkpoint(tmp_path, 1, {"learner": Trick()})
    assert path.read_bytes().startswith(MAGIC)
    with pytest.raises(DertsError, match="damaged or not one of ours"):
        load_checkpoint(path)
    assert not (tmp_path / "ran").exists()


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for update in (5, 10, 12):
        save_checkpoint(tmp_path, update, {"learner": {}})
    kept = [path.name for path in checkpoint_files(tmp_path)]
    assert kept == ["update-0000010.ckpt", "update-0000012.ckpt"]


def test_a_checkpoint_brings_the_trainer_back_to_the_bit(tmp_path: Path, letters: Tables) -> None:
    config = tiny()
    whole = Trainer(config, letters)
    whole.train(stopping=lambda: whole.update == 7)  # inside of an event
    path = save_checkpoint(tmp_path, whole.update, whole.state_dict())
    whole.train()
    later, kept = Trainer(config, letters), load_checkpoint(path)
    later.load_state_dict(kept)
    assert_same(later.state_dict()["window"], kept["window"])
    assert len(kept["window"]["values"])
    later.train()
    assert_same(later.learner.state_dict(), whole.learner.state_dict())


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, letters: Tables) -> None:
    train(tiny(updates=1), tmp_path / "run", tables=letters, quiet=True)
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace("width = 4", "width = 8"))
    with pytest.raises(DertsError, match="does not fit this config and data"):
        open_trainer(tmp_path / "run", letters)


@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory, letters: Tables) -> Path:
    """A run whose newest checkpoint is at update 7, inside of a round."""
    run = tmp_path_factory.mktemp("halfway") / "run"
    config = tiny(strategy={"name": "derts"}, checkpoint_every=7)
    train(config, run, tables=letters, quiet=True)
    (run / "result.json").unlink()
    checkpoint_files(run / "checkpoints")[-1].unlink()
    return run


def of_strategy(**values: Any) -> Callable[[State], object]:
    return lambda state: state["strategy"].update(values)


@pytest.mark.parametrize(
    "change",
    [
        of_strategy(position=99),
        of_strategy(position=-1),
        of_strategy(round=0),
        of_strategy(weights=torch.ones(3)),
        of_strategy(batches=[torch.tensor([99])]),
        lambda state: state.update(update=10**9),
        lambda state: state.update(update=-1),
        lambda state: state.pop("logs"),
        lambda state: state.update(logs="x"),
        lambda state: state.update(logs={"events.jsonl": -3}),
    ],
)
def test_whole_checkpoints_that_cannot_be_are_refused(
    change: Callable[[State], object], halfway: Path, letters: Tables
) -> None:
    events = (halfway / "events.jsonl").read_bytes()
    (path,) = checkpoint_files(halfway / "checkpoints")
    content = path.read_bytes()
    state = load_checkpoint(path)
    change(state)
    save_checkpoint(halfway / "checkpoints", 7, state)
    try:
        with pytest.raises(DertsError, match=r"does not fit|does not say"):
            resume(halfway, tables=letters, quiet=True)
    finally:
        path.write_bytes(content)
    assert (halfway / "events.jsonl").read_bytes() == events


def test_logs_are_on_the_disk_before_a_checkpoint_names_their_length(
    tmp_path: Path, letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a log is at least as long as the newest checkpoint says."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to see which file is meant")
    on_disk, real = {"events.jsonl": 0}, os.fsync
    promised: list[int] = []

    def fsync(handle: int) -> None:
        real(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        on_disk[path.name] = os.fstat(handle).st_size
        if ".ckpt" in path.name:
            promised.append(load_checkpoint(path)["logs"]["events.jsonl"])
            assert on_disk["events.jsonl"] >= promised[-1] > 0

    monkeypatch.setattr(os, "fsync", fsync)
    train(tiny(checkpoint_every=4), tmp_path / "run", tables=letters, quiet=True)
    assert len(promised) == 3
