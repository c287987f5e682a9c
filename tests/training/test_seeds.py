"""Several seeds in one process: the runs are those of single commands, and go on together."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from derts.cli import run
from derts.data import open_data
from derts.data.streaming import placed_tables
from derts.errors import DertsError, InterruptedRunError
from derts.training import train
from derts.training.run import begin_seeds, seed_folders, train_seeds
from tests.tiny import TINY_WORDS, tiny

CONFIG = tiny(strategy={"name": "derts"}, checkpoint_every=4)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was opened, in this order."""
    from derts.data import streaming
    from derts.training import run

    found: list[str] = []
    real = open_data

    def note(data: str) -> Any:
        found.append(data)
        return real(data)

    placed_tables.cache_clear()
    for place in (run, streaming):
        monkeypatch.setattr(place, "open_data", note)
    return found


def test_each_seed_is_the_run_it_would_be_alone_and_data_is_opened_once(
    tmp_path: Path, opened: list[str]
) -> None:
    folders = begin_seeds(CONFIG, (10, 2), tmp_path)
    results = train_seeds(folders, quiet=True)
    assert opened == [CONFIG.data]
    assert [folder.name for folder in folders] == ["seed-10", "seed-2"]
    assert [folder.name for folder in seed_folders(tmp_path)] == ["seed-2", "seed-10"]
    alone = train(tiny(strategy={"name": "derts"}, checkpoint_every=4, seed=2), quiet=True)
    assert results[1]["accuracies"] == alone["accuracies"]
    assert results[0]["accuracies"] != alone["accuracies"]


def test_control_c_keeps_what_is_done_and_resume_does_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    folders = begin_seeds(CONFIG, (0, 1, 2), out)
    alone = train_seeds(begin_seeds(CONFIG, (1,), tmp_path / "alone"), quiet=True)

    def listen(folder: Path) -> Any:
        def hear(event: dict[str, Any]) -> None:
            if folder.name == "seed-1" and event["event"] == "round" and event["update"] > 4:
                os.kill(os.getpid(), signal.SIGINT)

        return hear

    with pytest.raises(InterruptedRunError, match=rf"seed 1: .*--resume {out}$"):
        train_seeds(folders, quiet=True, listen=listen)
    first = (out / "seed-0" / "result.json").stat().st_mtime_ns
    assert not (out / "seed-1" / "result.json").exists()
    assert list((out / "seed-1" / "checkpoints").iterdir())
    assert run(["train", "--resume", str(out), "--quiet"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()[2:6]] == [
        "seed-0",
        "seed-1",
        "seed-2",
        "mean",
    ]
    assert "data opened once" in shown
    assert (out / "seed-0" / "result.json").stat().st_mtime_ns == first
    again = train_seeds(seed_folders(out), quiet=True)
    assert again[1]["accuracies"] == alone[0]["accuracies"]


def test_an_interruption_between_two_seeds_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("derts.training.run.resume", stop)
    with pytest.raises(InterruptedRunError, match=f"seed 0: interrupted: .*--resume {tmp_path}$"):
        train_seeds(begin_seeds(CONFIG, (0, 1), tmp_path), quiet=True)


def test_a_folder_that_is_there_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin_seeds(CONFIG, (1,), tmp_path / "out")
    with pytest.raises(DertsError, match="seed-1 already exists"):
        begin_seeds(CONFIG, (0, 1), tmp_path / "out")
    assert [folder.name for folder in seed_folders(tmp_path / "out")] == ["seed-1"]
    (tmp_path / "config.toml").touch()
    with pytest.raises(DertsError, match="is a run already"):
        begin_seeds(CONFIG, (0,), tmp_path)
    words = ["train", *TINY_WORDS, "--seeds", "10", "1", "--out", str(tmp_path / "out")]
    assert run(words) == 2
    assert run([*words, "--overwrite"]) == 0
    assert run(["train", "--resume", str(tmp_path / "out"), "--quiet", "--updates", "13"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in rows if line.startswith("seed-")] == ["12"] * 2 + ["13"] * 2
