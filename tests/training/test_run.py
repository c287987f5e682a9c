"""Beginning, stopping and going on: folders, signals, a full disk, two processes."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from derts.config import TrainConfig
from derts.data import ImageTable
from derts.errors import DertsError
from derts.files import LOCK, locked
from derts.model_files import load_model
from derts.training import Trainer, resume, train
from derts.training.checkpoint import checkpoint_files, load_checkpoint
from derts.training.run import checked_trainer, open_trainer, stop_requests
from derts.training.run_folder import Run
from tests.tiny import TINY, TINY_WORDS, tiny
from tests.training.records import assert_same, before_update, timeless

Tables = dict[str, ImageTable]
SMALL = tiny(checkpoint_every=4)
DERTS = tiny(strategy={"name": "derts"}, checkpoint_every=4)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def quiet(config: TrainConfig, out: Path | None, tables: Tables, **more: Any) -> dict[str, Any]:
    return train(config, out, tables=tables, quiet=True, **more)


def test_a_run_folder_holds_config_events_result_and_checkpoints(
    tmp_path: Path, letters: Tables
) -> None:
    config = tiny(checkpoint_every=5, validate_every=6)
    heard: list[dict[str, Any]] = []
    result = quiet(config, tmp_path / "run", letters, listen=heard.append)
    run = Run.open(tmp_path / "run")
    assert run.config == config.resolved()
    events = list(run.events())
    assert events == heard
    assert [event["update"] for event in events if event["event"] == "update"] == [5, 6, 10, 12]
    assert [event["update"] for event in events if event["event"] == "validation"] == [6, 12]
    for event in events:
        if event["event"] == "update":
            assert event["seconds"]["update"] > 0
            assert event["images_per_second"] > 0
    assert json.loads((run.path / "result.json").read_text()) == result
    accuracies = result["accuracies"]
    assert result["accuracy"] == pytest.approx(sum(accuracies) / len(accuracies), abs=1e-3)
    assert (len(accuracies), result["tasks_trained"]) == (20, 24)
    assert 0 < result["seconds_per_update"] < 10
    assert list(open_trainer(run.path, letters).evaluate("test").accuracies) == accuracies


def test_a_run_is_judged_by_the_weights_that_validated_best(
    tmp_path: Path, letters: Tables
) -> None:
    # a rate at which training soon falls apart, so that the last weights are not the best
    config = tiny(
        optimiser={"lr": 0.3}, evaluation={"tasks": 30, "weights": "best"}, updates=11,
        validate_every=3,
    )  # fmt: skip
    result = quiet(config, tmp_path / "run", letters)
    events = Run.open(tmp_path / "run").events()
    seen = {e["update"]: e["accuracy"] for e in events if e["event"] == "validation"}
    assert list(seen) == [3, 6, 9, 11]
    best = max(seen, key=lambda update: seen[update])
    assert best < config.updates
    assert (result["weights_of_update"], result["updates"]) == (best, config.updates)
    again = Trainer(config, letters)
    again.train(best)
    assert list(again.evaluate("test").accuracies) == result["accuracies"]
    for learner in (
        open_trainer(tmp_path / "run", letters).learner,
        load_model(tmp_path / "run").learner,
    ):
        assert_same(dict(learner.state_dict()), dict(again.learner.state_dict()))
    again.train()
    last = open_trainer(tmp_path / "run", letters, last=True).learner
    assert_same(last.state_dict(), again.learner.state_dict())


def test_the_run_folder_is_not_overwritten_unasked(tmp_path: Path, letters: Tables) -> None:
    short = tiny(updates=1)
    quiet(short, tmp_path / "run", letters)
    with pytest.raises(DertsError, match="already exists: choose another --out or pass"):
        quiet(short, tmp_path / "run", letters)
    quiet(short, tmp_path / "run", letters, overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(DertsError, match=r"already exists: choose another --out$"):
        quiet(short, tmp_path / "mine", letters, overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": {"way": 500}}, "way 500 needs"),
        ({"tasks": {"shot": 11}}, "images but shot 11"),
        ({"tasks": {"classes": ("n01532829",)}}, "no class 'n01532829'"),
        ({"evaluation": {"split": "exam"}}, "no split 'exam'"),
        ({"evaluation": {"query": 50}}, "of 'test' has 12 images"),
        ({"evaluation": {"weights": "best"}}, "best needs --validate-every"),
        ({"tasks": {"way": 11}, "validate_every": 1}, "way 11"),
        ({"hardware": {"device": "quantum"}}, "quantum cannot be used"),
    ],
)
def test_impossible_settings_are_refused_before_anything_is_written(
    changes: dict[str, Any], message: str, tmp_path: Path, letters: Tables
) -> None:
    with pytest.raises(DertsError, match=message):
        quiet(tiny(**changes), tmp_path / "run", letters)
    assert not (tmp_path / "run").exists()


def test_no_split_refuses_the_way_that_is_advised(letters: Tables) -> None:
    with pytest.raises(DertsError, match=r"lower --tasks\.way to") as caught:
        checked_trainer(tiny(tasks={"way": 50}, validate_every=1), letters)
    advised = int(re.findall(r"--tasks.way to (\d+)", str(caught.value))[0])
    assert advised == min(len(table.class_names) for table in letters.values())
    assert checked_trainer(tiny(tasks={"way": advised}, validate_every=1), letters).update == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_goes_on_to_the_bit(
    number: int, tmp_path: Path, letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = quiet(DERTS, tmp_path / "whole", letters)
    with monkeypatch.context() as patch:
        before_update(6, lambda: signal.raise_signal(number), patch)
        with pytest.raises(DertsError, match="interrupted at update 7: all is saved, go on with"):
            quiet(DERTS, tmp_path / "run", letters)
    newest = checkpoint_files(tmp_path / "run" / "checkpoints")[-1]
    assert load_checkpoint(newest)["update"] == 7
    again = resume(tmp_path / "run", tables=letters, quiet=True)
    assert again["accuracies"] == whole["accuracies"]
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")
    with pytest.raises(DertsError, match="is finished"):
        resume(tmp_path / "run", tables=letters, quiet=True)


def test_an_interrupt_without_a_folder_says_that_nothing_was_kept(
    letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_update(2, lambda: signal.raise_signal(signal.SIGINT), monkeypatch)
    with pytest.raises(DertsError, match="nothing was kept"):
        quiet(TINY, None, letters)


def test_a_signal_that_is_passed_on_twice_counts_once() -> None:
    with stop_requests(apart=60) as stopping:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert stopping()
    with pytest.raises(KeyboardInterrupt), stop_requests():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, letters: Tables, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = quiet(SMALL, tmp_path / "run", letters)
    before, newest = checkpoint_files(tmp_path / "run" / "checkpoints")
    newest.write_bytes(newest.read_bytes()[:999])
    (tmp_path / "run" / "result.json").unlink()
    events = timeless(tmp_path / "run")
    again = resume(tmp_path / "run", tables=letters, quiet=True)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"going on from the one before it, {before.name}" in said
    assert again["accuracies"] == whole["accuracies"]
    assert timeless(tmp_path / "run") == events


def test_a_run_that_ended_before_its_first_checkpoint_begins_again(
    tmp_path: Path, letters: Tables
) -> None:
    whole = quiet(SMALL, tmp_path / "whole", letters)
    run = Run(tmp_path / "run", SMALL.resolved())
    run.clear()
    run.log({"event": "update", "update": 3})
    assert resume(tmp_path / "run", tables=letters, quiet=True)["accuracies"] == whole["accuracies"]
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")


def test_what_a_process_killed_at_once_leaves_does_not_block_the_folder(
    tmp_path: Path, letters: Tables
) -> None:
    with locked(tmp_path / "run"):
        (tmp_path / "run" / ".config.toml.123.tmp").write_text("upda")
    result = quiet(tiny(updates=1), tmp_path / "run", letters)
    assert Run.open(tmp_path / "run").result() == result


@pytest.mark.slow
def test_a_second_process_is_refused_until_the_first_is_gone(in_folder: Path) -> None:
    command = [sys.executable, "-m", "derts", "train", *TINY_WORDS, "--updates", "100000"]
    command += ["--checkpoint-every", "3", "--out", "run"]
    first = subprocess.Popen(command, env=ENVIRONMENT)
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
code = run(["train", *sys.argv[2:], "--out", str(out)])
kept = [load_checkpoint(path)["update"] for path in checkpoint_files(out / "checkpoints")]
(out.parent / "filler").unlink()
again = run(["train", "--resume", str(out), "--quiet"])
print(json.dumps([code, kept, again, sorted(path.name for path in out.rglob("*"))]))
"""


@pytest.mark.slow
def test_a_full_disk_stops_cleanly_and_the_run_goes_on_later(tmp_path: Path) -> None:
    """A tmpfs of 2 MB, mounted in a namespace of its own, that a filler nearly fills."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=2m tmpfs {disk}"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a tmpfs; the limit on file sizes is tested")
    script = tmp_path / "train.py"
    script.write_text(FULL_DISK)
    options = [*TINY_WORDS, "--updates", "40", "--checkpoint-every", "4", "--model.width", "32"]
    fill = f"head -c 1500000 /dev/zero > {disk}/filler"
    inside = f'{mount} && {fill} && exec "$0" "$@"'
    answer = subprocess.run(
        ["unshare", "-rm", "sh", "-c", inside, sys.executable, str(script), str(disk / "run"),
         *options],
        capture_output=True, text=True, timeout=120, env=ENVIRONMENT,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    code, kept, again, names = json.loads(answer.stdout.splitlines()[-1])
    assert (code, again) == (2, 0)
    assert "is full at update" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert len(kept) in (1, 2)
    assert "result.json" in names
    assert not [name for name in names if name.endswith(".tmp")]


def test_a_file_that_cannot_grow_leaves_the_checkpoints_before_intact(
    tmp_path: Path, letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))

    with monkeypatch.context() as patch:
        before_update(9, limit, patch)
        try:
            with pytest.raises(DertsError, match="full at update 12: free some space, then go on"):
                quiet(SMALL, tmp_path / "run", letters)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    kept = checkpoint_files(tmp_path / "run" / "checkpoints")
    assert [load_checkpoint(path)["update"] for path in kept] == [4, 8]
    assert not list((tmp_path / "run").rglob("*.tmp"))
    assert resume(tmp_path / "run", tables=letters, quiet=True)["updates"] == 12
