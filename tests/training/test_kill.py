"""A run killed at any moment goes on as if nothing had happened."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from derts.training.checkpoint import checkpoint_files, load_checkpoint
from tests.training.records import assert_same, timeless

ROOT = Path(__file__).parents[2]
KILLS = 12  # fifty and more are `make soak`


@pytest.mark.slow
def test_a_dozen_kills_leave_no_trace(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.training.kill_host", str(tmp_path / "killed")]
    answer = subprocess.run(
        [*command, str(KILLS), "3"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
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
    assert states[0]["update"] == states[1]["update"] == 120
    for part in ("learner", "optimiser", "strategy"):
        assert_same(states[0][part], states[1][part])
    results = [json.loads((run / "result.json").read_text()) for run in (whole, killed)]
    assert results[0]["accuracies"] == results[1]["accuracies"]
    assert not list(killed.glob("**/.*.tmp"))
