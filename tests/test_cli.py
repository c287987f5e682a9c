"""The command line as a user meets it: exit codes, one line for every mistake."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy
import pytest
from PIL import Image

from derts.cli import COMMANDS, run
from tests.tiny import TINY_WORDS

TINY = [*TINY_WORDS, "--updates", "3"]


def folder_of_classes(path: Path, classes: int = 9, images: int = 6, size: int = 20) -> Path:
    for number in range(classes):
        (path / f"class-{number}").mkdir(parents=True)
        for copy in range(images):
            color = (number * 25, copy * 40, 128)
            Image.new("RGB", (size, size), color).save(path / f"class-{number}" / f"{copy}.png")
    return path


def failure(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a command that must fail with code 2 and one line; return the line."""
    assert run(list(words)) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("preparing: ")]
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("derts: ")
    return lines[0]


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"derts {name}" in shown for name in COMMANDS)
    assert run(["data"]) == 0
    assert run(["--version"]) == 0


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help_with_options_and_examples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        run([*name.split(), "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: derts {name}" in shown
    assert f"  derts {name}" in shown.partition("Examples:")[2]


def test_help_does_not_wait_for_torch() -> None:
    script = """
import sys
from derts.cli import COMMANDS, run
for words in ([], *(name.split() for name in COMMANDS)):
    try:
        run([*words, "--help"])
    except SystemExit as stop:
        assert stop.code == 0, words
    if not words:
        assert not {"tyro", "numpy", "matplotlib"} & sys.modules.keys()
    assert "torch" not in sys.modules, words
"""
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


def test_from_a_folder_of_photos_to_an_evaluated_learner(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_of_classes(in_folder / "photos")
    assert run(["data", "prepare", "photos", "store", "--size", "16", "--workers", "1"]) == 0
    assert run(["data", "info", "store"]) == 0
    assert "16×16×3" in capsys.readouterr().out
    assert run(["data", "verify", "store"]) == 0
    assert run(["train", *TINY, "--data", "store", "--tasks.way", "2", "--out", "first"]) == 0
    assert "accuracy" in capsys.readouterr().out
    saved = json.loads((in_folder / "first" / "result.json").read_text())
    assert run(["evaluate", "first"]) == 0
    assert f"{saved['accuracy']:.2f}%" in capsys.readouterr().out
    config = ["--config", "first/config.toml"]
    assert run(["train", *config, "--quiet", "--out", "second"]) == 0
    again = json.loads((in_folder / "second" / "result.json").read_text())
    assert again["accuracies"] == saved["accuracies"]


def test_options_win_over_config_files_and_those_over_presets(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_folder / "c.toml").write_text("updates = 2\nmeta_batch = 3\n[model]\nwidth = 4\n")
    flags = ["--tasks.shot", "1", "--evaluation.tasks", "5", "--quiet", "--meta-batch", "2"]
    words = ["train", "--preset", "demo", "--config", "c.toml", *flags, "--out", "run"]
    assert run(words) == 0
    result = json.loads((in_folder / "run" / "result.json").read_text())
    assert result["config"]["meta_batch"] == 2
    assert result["updates"] == 2
    assert result["config"]["tasks"]["query"] == 5  # the preset's


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["trian"], "did you mean 'train'"),
        (["data", "prepaer"], "choose from data prepare"),
        (["train", "--upates", "3"], "--upates"),
        (["train", "--updates", "many"], "invalid literal"),
        (["train", "--updates", "0"], "between 1 and"),
        (["train", "--tasks.way", "1"], "between 2 and"),
        (["train", "--tasks.way", "5000"], "needs 5000 classes"),
        (["train", "--tasks.shot", "400"], "images but shot 400"),
        (["train", "--tasks.noise", "loud"], "loud"),
        (["train", "--preset", "fast"], "no preset 'fast'"),
        (["train", "--preset"], "--preset names none"),
        (["train", "--config", "none.toml"], "no config file"),
        (["train", "--config"], "--config names none: give a path"),
        (["train", "--resume"], "--resume names none: give a path"),
        (["train", "--data", "nowhere"], "nowhere"),
        (["train", "--data", "."], "holds no data set that is known"),
        (["train", "--hardware.device", "quantum"], "quantum"),
        (["train", "--learner.inner-steps", "-1"], "--learner.inner-steps is -1"),
        (["train", "--tasks.noise", "swap:nan"], "--tasks.noise is 'swap:nan'"),
        (["train", "--evaluation.query", "50"], "of 'test' has 40 images"),
        (["train", "--strategy.name", "ats"], "needs a learner that adapts"),
        (["train", "--resume", "nowhere"], "not a run folder"),
        (["train", "--seeds"], "--seeds names none"),
        (["train", "--seeds", "1", "2", "1"], "--seeds names 1 twice"),
        (["train", "--seeds", "1", "--seed=0"], "leave one out"),
        (["train", "--seeds", "1", "--resume", "nowhere"], "leave one out"),
        (["train", "--seeds", "-1"], "--seed is -1"),
        (["train", "--seeds", "0", "--tasks.query", "400"], "lower --tasks.shot"),
        (["predict", "run"], "Missing: --support PATH, --query PATH (derts predict --help)"),
        (["select", "g.npy"], "Missing: --k INT, --out PATH"),
        (["clean"], "Missing: RUN (derts"),
        (["train", "--evaluation.query", "38"], "lower --tasks.shot or --evaluation.query"),
        (["train", "--tasks.query", "400"], "lower --tasks.shot or --tasks.query"),
        (["demo", "--seeds", "0"], "--seeds is 0"),
        (["diagnose", "nowhere", "--ratio", "nan"], "--ratio is nan"),
        (["evaluate", "nowhere"], "not a run folder"),
        (["evaluate"], "RUN"),
        (["data", "prepare", "nowhere", "store"], "nowhere"),
        (["data", "info", "nowhere"], "does not exist"),
        (["data", "verify", "."], "store"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(
    words: list[str], expected: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in failure(capsys, *words)
    assert list(in_folder.iterdir()) == []


def test_a_broken_image_is_named(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = folder_of_classes(in_folder / "photos")
    (photos / "class-3" / "bad.png").write_bytes(b"\x89PNG nothing")
    line = failure(capsys, "data", "prepare", "photos", "store", "--workers", "1")
    assert "bad.png" in line
    assert "--skip-broken" in line


def test_a_truncated_store_and_checkpoint_are_named(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_of_classes(in_folder / "photos")
    assert run(["data", "prepare", "photos", "store", "--size", "16", "--workers", "1"]) == 0
    assert run(["train", *TINY, "--data", "store", "--tasks.way", "2", "--out", "first"]) == 0
    capsys.readouterr()
    checkpoint = next((in_folder / "first" / "checkpoints").iterdir())
    checkpoint.write_bytes(checkpoint.read_bytes()[:500])
    assert "damaged" in failure(capsys, "evaluate", "first")
    array = in_folder / "store" / "train.npy"
    array.write_bytes(array.read_bytes()[:-1000])
    assert "store" in failure(capsys, "train", *TINY, "--data", "store")


def test_a_full_disk_is_named(
    in_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("derts.training.driver.save_checkpoint", full)
    assert "of run is full" in failure(capsys, "train", *TINY, "--out", "run")


@pytest.mark.slow
def test_control_c_saves_and_says_so(in_folder: Path) -> None:
    command = [sys.executable, "-m", "derts", "train", *TINY]
    command += ["--updates", "100000", "--out", "run"]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **quiet)  # type: ignore[call-overload]
    events = in_folder / "run" / "events.jsonl"
    limit = time.monotonic() + 60
    while not (events.exists() and events.stat().st_size) and time.monotonic() < limit:
        time.sleep(0.05)
    try:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert said.startswith("derts: interrupted at update")
    assert "derts train --resume run" in said
    assert "Traceback" not in said
    assert len(list((in_folder / "run" / "checkpoints").glob("*.ckpt"))) == 1


def test_selecting_rows_of_any_matrix(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numpy.save("g.npy", numpy.random.default_rng(0).normal(size=(50, 3)))
    assert run(["select", "g.npy", "--k", "7", "--out", "s.json"]) == 0
    found = json.loads((in_folder / "s.json").read_text())
    assert len(set(found["indices"])) == 7
    assert sum(found["weights"]) == 50
    capsys.readouterr()
    assert "between 1 and the number of rows" in failure(
        capsys, "select", "g.npy", "--k", "51", "--out", "t.json"
    )
    (in_folder / "bad.npy").write_text("no matrix")
    assert "not a .npy file" in failure(capsys, "select", "bad.npy", "--k", "1", "--out", "t.json")
    assert not (in_folder / "t.json").exists()


@pytest.mark.parametrize(("warmup", "began"), [(3, False), (1, True)])
def test_a_strategy_whose_warm_up_is_all_of_the_run_is_said_to_have_done_nothing(
    warmup: int, began: bool, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*TINY, "--strategy.name", "us", "--strategy.warmup", str(warmup), "--out", "run"]
    assert run(["train", *words]) == 0
    shown = f"It never began: the warm-up of {warmup} updates is all of the run."
    assert (shown in capsys.readouterr().out) == (not began)
