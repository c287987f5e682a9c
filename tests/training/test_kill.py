"""A run killed at any moment goes on as if nothing had happened."""

import json
import subprocess
import sys
from pathlib import Path

import torch

from derts.training.checkpoint import checkpoint_files, load_checkpoint
from derts.training.run_folder import Run

HOST = Path(__file__).with_name("kill_host.py")
KILLS = 20


def test_twenty_kills_leave_no_trace(tmp_path: Path) -> None:
    command = [sys.executable, str(HOST), str(tmp_path / "killed"), str(KILLS), "3"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stderr
    kills = json.loads(answer.stdout)
    assert len(kills) == KILLS, f"the run was over after {len(kills)} kills"
    assert all(was_killed for _, was_killed, _, _ in kills)
    plans = [plan for plan, _, _, _ in kills]
    assert kills[plans.index("checkpoint")][3] == 1  # the torn file was there
    assert "selection" in plans
    last_updates = [update for _, _, update, _ in kills]
    assert len(set(last_updates)) > 3, "all kills came at the same place"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert timeless(whole) == timeless(killed)
    states = [load_checkpoint(checkpoint_files(run / "checkpoints")[-1]) for run in (whole, killed)]
    assert states[0]["update"] == states[1]["update"] == 240
    for part in ("learner", "optimiser", "strategy"):
        assert_same(states[0][part], states[1][part])
    results = [json.loads((run / "result.json").read_text()) for run in (whole, killed)]
    assert results[0]["accuracies"] == results[1]["accuracies"]
    assert not list(killed.glob("**/.*.tmp"))


def timeless(run: Path) -> list[dict[str, object]]:
    timed = ("seconds", "images_per_second")
    lines = (run / "events.jsonl").read_text().splitlines()
    assert len(lines) == len(list(Run.open(run).events()))
    return [
        {key: value for key, value in json.loads(line).items() if key not in timed}
        for line in lines
        if json.loads(line)["event"] != "start"
    ]


def assert_same(first: object, second: object) -> None:
    if isinstance(first, torch.Tensor):
        assert isinstance(second, torch.Tensor)
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert isinstance(second, dict)
        assert first.keys() == second.keys()
        for key, value in first.items():
            assert_same(value, second[key])
    elif isinstance(first, list):
        assert isinstance(second, list)
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)
    else:
        assert first == second
