"""What keeping freed memory gains on a CPU: an update of the demo, with and without.

    python benchmarks/freed_memory.py --out results/freed-memory-cpu.json

Each measurement is a process of its own, for glibc cannot be told to forget; they take turns.
Milliseconds are medians over processes, each of thirty updates after a round to warm up.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

from derts.commands.demo import CHARACTERS, IMAGES, SMALL
from derts.config_file import apply_presets, with_values
from derts.data import glyphs
from derts.provenance import code_version, machine
from derts.training import Trainer, hardware

WARM_UP, UPDATES = 10, 30


def measure(strategy: str, keep: bool, quick: bool) -> dict[str, float]:
    """Milliseconds per update, the system's share of them, and the largest memory in MiB."""
    if not keep:
        mock.patch.object(hardware, "keep_freed_memory", return_value=False).start()
    settings = {"name": strategy, "warmup": 4, "selects": "always"}
    values = {"strategy": settings, "updates": 1000}
    config = with_values(apply_presets(["demo"]), values, "benchmark")
    if quick:
        config = with_values(config, {**SMALL, "updates": 1000}, "--quick")
    tables = glyphs(characters=CHARACTERS, images_per_character=IMAGES)
    trainer = Trainer(config, tables)
    warm_up, updates = (5, 2) if quick else (WARM_UP, UPDATES)
    trainer.train(warm_up)
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    trainer.train(warm_up + updates)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "ms": 1000 * seconds / updates,
        "system_share": (after.ru_stime - before.ru_stime) / max(spent, 1e-9),
        "mib": after.ru_maxrss / 1024,
    }


def main() -> None:
    """Measure in turns; as a child, print one measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--child", nargs=2, metavar=("STRATEGY", "KEEP"))
    options = parser.parse_args()
    if options.child is not None:
        strategy, keep = options.child
        print(json.dumps(measure(strategy, keep == "keep", options.quick)))
        return
    found: list[dict[str, Any]] = []
    for strategy in ("random", "derts"):
        runs: dict[str, list[dict[str, float]]] = {"give back": [], "keep": []}
        for _ in range(1 if options.quick else options.repeats):
            for way, made in runs.items():
                words = [sys.executable, __file__, "--child", strategy, way]
                words += ["--quick"] if options.quick else []
                done = subprocess.run(words, capture_output=True, text=True, check=True)
                made.append(json.loads(done.stdout.splitlines()[-1]))
        rows: list[dict[str, Any]] = [
            {
                "strategy": strategy,
                "freed": way,
                **{key: statistics.median(run[key] for run in made) for key in made[0]},
            }
            for way, made in runs.items()
        ]
        ratio = rows[0]["ms"] / rows[1]["ms"]
        for row in rows:
            print(
                f"{strategy}, {row['freed']}: {row['ms']:.0f} ms per update, system "
                f"{100 * row['system_share']:.0f}%, {row['mib']:.0f} MiB",
                flush=True,
            )
        print(f"{strategy}: {ratio:.2f} × as fast", flush=True)
        found += rows
    if options.out is not None:
        about = {"machine": machine("cpu"), "code": code_version()}
        options.out.write_text(json.dumps({**about, "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
