"""A long run on glyphs: does memory, the number of open files or the record grow?

    python benchmarks/soak_memory.py results/soak-memory-cpu.json

Trains by derts with an evaluation every 50 updates and looks at the process each time. Fails
where resident memory grows by more than LIMIT_MB per 1,000 updates, an open file is left over, or
an update takes more than LIMIT_BYTES of the record. With --no-limit memory may grow: a short run
says little about it.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import tyro
from timing import write_with_code

from derts.config import (
    EvaluationConfig,
    ModelConfig,
    StrategyConfig,
    StrategyName,
    TaskConfig,
    TrainConfig,
)
from derts.data import glyphs
from derts.training import train
from derts.training.checkpoint import save_checkpoint

EVERY = 50
LIMIT_MB, LIMIT_BYTES = 4.0, 400


class Sample(NamedTuple):
    """The process after some updates."""

    update: int
    resident_mb: float
    open_files: int
    record_bytes: int


def look(update: int, run: Path) -> Sample:
    """Read the process's own numbers."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    resident = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    files = len(os.listdir("/proc/self/fd"))
    return Sample(update, resident, files, (run / "events.jsonl").stat().st_size)


def measure(updates: int, strategy: StrategyName) -> list[Sample]:
    """Train, looking at every evaluation."""
    config = TrainConfig(
        tasks=TaskConfig(shot=1, query=3, noise="tasks"),
        model=ModelConfig(width=8),
        evaluation=EvaluationConfig(tasks=30, query=5),
        strategy=StrategyConfig(strategy, warmup=20, pool=100, select="greedy"),
        updates=updates,
        meta_batch=4,
        validate_every=EVERY,
        checkpoint_every=EVERY,
    )
    samples: list[Sample] = []
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"

        def save(checkpoints: Path, update: int, state: dict[str, Any]) -> Path:
            written = save_checkpoint(checkpoints, update, state)
            samples.append(look(update, run))
            return written

        with patch("derts.training.driver.save_checkpoint", save):
            train(config, run, tables=glyphs(characters=60, images_per_character=12), quiet=True)
    return samples


def summary(samples: list[Sample]) -> dict[str, Any]:
    """Growth after the first quarter, in which allocators find their size.

    The slope is the median over pairs of samples: a pool that is being drawn while a sample is
    taken must not look like growth.
    """
    later = samples[len(samples) // 4 :]
    updates = np.array([sample.update for sample in later], dtype=np.float64)
    resident = np.array([sample.resident_mb for sample in later])
    first, second = np.triu_indices(len(later), 1)
    slopes = (resident[second] - resident[first]) / (updates[second] - updates[first])
    written = later[-1].record_bytes - later[0].record_bytes
    return {
        "resident_mb": round(later[-1].resident_mb, 1),
        "resident_mb_per_1000_updates": round(float(np.median(slopes)) * 1000, 3),
        "open_files_first": later[0].open_files,
        "open_files_last": later[-1].open_files,
        "record_bytes_per_update": round(written / (later[-1].update - later[0].update), 1),
    }


def main(
    out: tyro.conf.Positional[Path],
    updates: int = 2000,
    strategy: StrategyName = "derts",
    limit: bool = True,
) -> None:
    torch.set_num_threads(1)
    samples = measure(updates, strategy)
    found = summary(samples)
    print(found)
    about: dict[str, Any] = {"updates": updates, "evaluation_every": EVERY, "strategy": strategy}
    write_with_code(out, **about, **found, samples=samples)
    assert not limit or found["resident_mb_per_1000_updates"] <= LIMIT_MB
    assert found["open_files_last"] == found["open_files_first"]
    assert found["record_bytes_per_update"] <= LIMIT_BYTES


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
