"""Stopping and going on: signals, damaged checkpoints, a full disk, two processes."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from derts.config import EvaluationConfig, ModelConfig, TaskConfig, TrainConfig
from derts.data import ImageTable
from derts.errors import DertsError
from derts.files import LOCK, locked
from derts.training import Trainer, resume, train
from derts.training.checkpoint import checkpoint_files, load_checkpoint
from derts.training.run import stop_requests
from derts.training.run_folder import Run

Tables = dict[str, ImageTable]

SMALL = TrainConfig(
    tasks=TaskConfig(shot=1, query=2),
    model=ModelConfig(width=4),
    evaluation=EvaluationConfig(tasks=20, query=3),
    updates=12,
    meta_batch=2,
    log_every=5,
    checkpoint_every=4,
)
TINY = [
    "--model.width", "4", "--tasks.shot", "1", "--tasks.query", "2", "--meta-batch", "2",
    "--evaluation.tasks", "10", "--evaluation.query", "3", "--quiet",
]  # fmt: skip


def stop_before(update: int, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    step = Trainer.step

    def stopped(self: Trainer) -> object:
        if self.update == update:
            signal.raise_signal(number)
        return step(self)

    monkeypatch.setattr(Trainer, "step", stopped)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_update_and_saves(
    number: int, tmp_path: Path, letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_before(5, patch, number)
        with pytest.raises(DertsError, match=r"at update 6: .* derts train --resume"):
            train(SMALL, tmp_path / "run", tables=letters, quiet=True)
    newest = checkpoint_files(tmp_path / "run" / "checkpoints")[-1]
    assert load_checkpoint(newest)["update"] == 6
    resume(tmp_path / "run", tables=letters, quiet=True)
    whole = train(SMALL, tmp_path / "whole", tables=letters, quiet=True)
    assert (
        whole["accuracies"]
        == json.loads((tmp_path / "run" / "result.json").read_text())["accuracies"]
    )
    logged = [[event["update"] for event in Run.open(tmp_path / name).events()
               if event["event"] != "start"] for name in ("run", "whole")]  # fmt: skip
    assert logged[0] == logged[1]


def test_a_signal_that_is_passed_on_twice_counts_once() -> None:
    with stop_requests(apart=60) as stopping:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert stopping()
    with pytest.raises(KeyboardInterrupt), stop_requests():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("damage", ["truncated", "altered", "empty"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    damage: str, tmp_path: Path, letters: Tables, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = train(SMALL, tmp_path / "run", tables=letters, quiet=True)
    before, newest = checkpoint_files(tmp_path / "run" / "checkpoints")
    content = bytearray(newest.read_bytes())
    content[len(content) // 3] ^= 1
    cut = {"truncated": len(content) // 2, "altered": len(content), "empty": 0}[damage]
    newest.write_bytes(content[:cut])
    (tmp_path / "run" / "result.json").unlink()
    events = (tmp_path / "run" / "events.jsonl").read_text().count("\n")
    again = resume(tmp_path / "run", tables=letters, quiet=True)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "is damaged" in said
    assert f"going on from the one before it, {before.name}" in said
    assert again["accuracies"] == whole["accuracies"]
    assert (tmp_path / "run" / "events.jsonl").read_text().count("\n") == events + 1


def test_a_run_that_ended_before_its_first_checkpoint_begins_again(
    tmp_path: Path, letters: Tables
) -> None:
    whole = train(SMALL, tmp_path / "whole", tables=letters, quiet=True)
    run = Run.create(tmp_path / "run", SMALL.resolved())
    run.log({"event": "update", "update": 3})
    assert resume(tmp_path / "run", tables=letters, quiet=True)["accuracies"] == whole["accuracies"]
    assert len(list(run.events())) == len(list(Run.open(tmp_path / "whole").events()))


def test_what_a_process_killed_at_once_leaves_does_not_block_the_folder(
    tmp_path: Path, letters: Tables
) -> None:
    with locked(tmp_path / "run"):
        (tmp_path / "run" / ".config.toml.123.tmp").write_text("upda")
    result = train(replace(SMALL, updates=1), tmp_path / "run", tables=letters, quiet=True)
    assert Run.open(tmp_path / "run").result() == result


def test_a_second_process_is_refused_until_the_first_is_gone(in_folder: Path) -> None:
    command = [sys.executable, "-m", "derts", "train", "--preset", "demo", *TINY]
    command += ["--updates", "100000", "--log-every", "1", "--checkpoint-every", "3"]
    first = subprocess.Popen([*command, "--out", "run"], env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        limit = time.monotonic() + 60
        while not checkpoint_files(Path("run/checkpoints")) and time.monotonic() < limit:
            time.sleep(0.02)
        refused = f"run is in use by process {first.pid}: wait"
        with pytest.raises(DertsError, match=refused):
            resume("run", quiet=True)
        with pytest.raises(DertsError, match=refused):
            train(SMALL, "run", overwrite=True, quiet=True)
        assert first.poll() is None
    finally:
        first.kill()
        first.wait()
    assert (in_folder / "run" / LOCK).exists()
    with locked(Path("run")):  # the owner was killed and could clean up nothing
        assert checkpoint_files(Path("run/checkpoints"))


FULL_DISK = """
import json, sys
from pathlib import Path
from derts.cli import run
from derts.training.checkpoint import checkpoint_files, load_checkpoint

out = Path(sys.argv[1])
code = run(["train", "--preset", "demo", *sys.argv[2:], "--out", str(out)])
kept = [load_checkpoint(path)["update"] for path in checkpoint_files(out / "checkpoints")]
(out.parent / "filler").unlink()
again = run(["train", "--resume", str(out), "--quiet"])
print(json.dumps([code, kept, again, sorted(path.name for path in out.rglob("*"))]))
"""


def test_a_full_disk_stops_cleanly_and_the_run_goes_on_later(tmp_path: Path) -> None:
    """A tmpfs of 2 MB, mounted in a namespace of its own, that a filler nearly fills."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=2m tmpfs {disk}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a tmpfs; the limit on file sizes is tested")
    script = tmp_path / "train.py"
    script.write_text(FULL_DISK)
    options = [*TINY, "--updates", "40", "--checkpoint-every", "4", "--model.width", "32"]
    fill = f"head -c 1500000 /dev/zero > {disk}/filler"
    inside = f'{mount} && {fill} && exec "$0" "$@"'
    answer = subprocess.run(
        ["unshare", "-rm", "sh", "-c", inside, sys.executable, str(script), str(disk / "run"),
         *options],
        capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    code, kept, again, names = json.loads(answer.stdout.splitlines()[-1])
    assert code == 2
    assert "is full at update" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert len(kept) in (1, 2)
    assert again == 0
    assert "result.json" in names
    assert not [name for name in names if name.endswith(".tmp")]


def test_a_file_that_cannot_grow_leaves_the_checkpoints_before_intact(
    tmp_path: Path, letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, before = Trainer.step, resource.getrlimit(resource.RLIMIT_FSIZE)

    def limited(self: Trainer) -> object:
        if self.update == 9:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
        return step(self)

    monkeypatch.setattr(Trainer, "step", limited)
    try:
        with pytest.raises(DertsError, match="is full at update 12: free some space, then go on"):
            train(SMALL, tmp_path / "run", tables=letters, quiet=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    kept = checkpoint_files(tmp_path / "run" / "checkpoints")
    assert [load_checkpoint(path)["update"] for path in kept] == [4, 8]
    assert not list((tmp_path / "run").rglob("*.tmp"))
    monkeypatch.setattr(Trainer, "step", step)
    assert resume(tmp_path / "run", tables=letters, quiet=True)["updates"] == 12
