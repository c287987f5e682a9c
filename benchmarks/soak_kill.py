"""Kill a run many times, with several seeds; writes results/soak-kill-cpu.json.

    python benchmarks/soak_kill.py results/soak-kill-cpu.json

What `make test` does with 12 kills and one seed, more often: after each run the weights, the
optimiser, the strategy and the record must equal those of a run that was left alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from timing import write_with_code

from derts.training.checkpoint import checkpoint_files, load_checkpoint
from derts.training.run_folder import Run

HOST = Path(__file__).parents[1] / "tests" / "training" / "kill_host.py"
SEEDS, KILLS = range(5), 20
TIMED = ("seconds", "images_per_second")


def outcome(run: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """A run's final weights and its record without what depends on the clock."""
    weights = load_checkpoint(checkpoint_files(run / "checkpoints")[-1])["learner"]
    events = Run.open(run).events()
    return weights, [{k: v for k, v in event.items() if k not in TIMED} for event in events]


def main(out: Path) -> None:
    kills = torn = 0
    for seed in SEEDS:
        with TemporaryDirectory() as folder:
            command = [sys.executable, str(HOST), f"{folder}/killed", str(KILLS), str(seed)]
            answer = subprocess.run(command, capture_output=True, text=True, check=True)
            found = json.loads(answer.stdout)
            assert len(found) == KILLS, "the run was over before all kills were made"
            kills += sum(was_killed for _, was_killed, _, _ in found)
            torn += sum(files for *_, files in found)
            weights, events = outcome(Path(folder) / "whole")
            again, record = outcome(Path(folder) / "killed")
            assert record == events, f"seed {seed}: another record"
            assert all(torch.equal(value, again[name]) for name, value in weights.items())
        print(f"seed {seed}: {kills} kills so far, {torn} inside a checkpoint's write", flush=True)
    write_with_code(out, runs=len(SEEDS), kills=kills, torn_checkpoints=torn, differences=0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
