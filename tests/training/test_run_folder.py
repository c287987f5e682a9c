"""Run folders in lists and side by side, and what listens while they grow."""

import json
from pathlib import Path

import pytest

from derts.cli import run
from derts.commands.train import tensorboard_listener
from derts.files import locked
from derts.training.run_folder import Run
from tests.tiny import TINY_WORDS, tiny


def test_runs_are_listed_and_compared(in_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("random", "derts"):
        for seed in ("0", "1"):
            words = [
                "train",
                *TINY_WORDS,
                "--updates",
                "4",
                "--strategy.name",
                name,
                "--seed",
                seed,
            ]
            assert run([*words, "--out", f"runs/{name}{seed}"]) == 0
    (in_folder / "runs" / "derts1" / "result.json").unlink()
    (in_folder / "runs" / "broken").mkdir()
    (in_folder / "runs" / "broken" / "config.toml").write_text("updates = many")
    capsys.readouterr()
    with locked(Path("runs/random1")):
        (in_folder / "runs" / "random1" / "result.json").rename("result.json")
        assert run(["runs"]) == 0
        assert "running at update 4 of 4" in capsys.readouterr().out
    (in_folder / "result.json").rename("runs/random1/result.json")
    assert run(["runs"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("finished") == 3
    assert "stopped at update 4 of 4" in shown
    assert "cannot be read" in shown
    compared = [f"runs/{name}" for name in ("derts0", "random0", "derts1", "random1")]
    Run(Path("runs/empty"), tiny()).clear()
    assert run(["compare", *compared, "runs/empty"]) == 0
    said = capsys.readouterr()
    assert said.err == "derts: runs/empty has logged nothing yet: it is left out\n"
    table = said.out.splitlines()
    assert table[2].startswith("random")
    saved = {
        name: json.loads((in_folder / "runs" / name / "result.json").read_text())["accuracy"]
        for name in ("random0", "derts0")
    }
    assert f"{saved['derts0'] - saved['random0']:+.2f}" in table[3]  # the one seed that both have
    assert any(line.startswith("strategy.name") for line in table)


def test_tensorboard_or_a_clear_refusal(
    in_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    assert run(["train", *TINY_WORDS, "--updates", "4", "--tensorboard", "--out", "run"]) == 2
    assert "derts[tensorboard]" in capsys.readouterr().err
    assert not (in_folder / "run").exists()


def test_tensorboard_gets_every_event(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    listen = tensorboard_listener(tmp_path)
    listen({"event": "update", "update": 3, "loss": 0.5})
    assert any((tmp_path / "tensorboard").iterdir())
