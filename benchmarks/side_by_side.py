"""Two runs on the same cores, or the same GPU: how much longer than one does each take?

    python benchmarks/side_by_side.py --out results/side-by-side-cpu.json
    python benchmarks/side_by_side.py --preset gpu --data mini --updates 400 --turns 1 \\
        --out results/side-by-side-h200.json

Processes train the demo's settings, or others, one alone and two at a time in turns, with waiting
threads that look as often as the command line lets them, and as often as OpenMP does by itself.
A time is a process's time for all its updates over their number; a ratio is that of two processes'
mean to the one before them.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from derts.hardware import SPINS, keep_freed_memory

OPENMP = "300000"  # spins that GNU's takes by itself
WARM = 5  # updates, in which kernels are compiled


def child(updates: int, preset: str, data: str | None) -> None:
    """Train, after a line of standard input; print seconds per update."""
    import torch

    from derts.config_file import apply_presets
    from derts.data import open_data
    from derts.training import Trainer

    config = apply_presets([preset])
    trainer = Trainer(config, open_data(data or config.data))
    trainer.train(WARM)
    print("ready", flush=True)
    sys.stdin.readline()
    begun = time.perf_counter()
    trainer.train(WARM + updates)
    if trainer.device.type == "cuda":
        torch.cuda.synchronize()
    print((time.perf_counter() - begun) / updates, flush=True)
    sys.stdin.readline()  # the other may still be at it: both are busy until both are done


def measure(count: int, options: argparse.Namespace) -> list[float]:
    """Seconds per update of so many processes at the same time."""
    command = [sys.executable, __file__, "--child", "--updates", str(options.updates)]
    command += ["--preset", options.preset, *(["--data", options.data] if options.data else [])]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    found = [subprocess.Popen(command, **pipes) for _ in range(count)]
    for one in found:
        one.stdout.readline()  # type: ignore[union-attr]
    for one in found:
        one.stdin.write("\n")  # type: ignore[union-attr]
        one.stdin.flush()  # type: ignore[union-attr]
    times = [float(one.stdout.readline()) for one in found]  # type: ignore[union-attr]
    for one in found:
        one.communicate("\n")
    return times


def main() -> None:
    """Measure in turns; print and write ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--spins", nargs="+", default=[SPINS, OPENMP])
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--data", help="a store (default: the preset's)")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    keep_freed_memory()
    if options.child:
        child(options.updates, options.preset, options.data)
        return
    rows: dict[str, list[dict[str, Any]]] = {spins: [] for spins in options.spins}
    for _, spins in itertools.product(range(options.turns), options.spins):
        os.environ["GOMP_SPINCOUNT"] = spins
        load = os.getloadavg()[0]
        (alone,), both = measure(1, options), measure(2, options)
        ratio = statistics.mean(both) / alone
        rows[spins].append({"alone": alone, "both": both, "ratio": ratio, "load": load})
        shown = ", ".join(f"{1000 * each:.0f}" for each in both)
        times = f"alone {1000 * alone:.0f} ms, two {shown} ms: {ratio:.2f} ×"
        print(f"{spins} spins: {times} (load {load:.1f})", flush=True)
    from timing import save_results

    found = []
    for spins, turns in rows.items():
        ratio = statistics.median(turn["ratio"] for turn in turns)
        alone = statistics.median(turn["alone"] for turn in turns)
        both = [statistics.median(turn["both"][index] for turn in turns) for index in range(2)]
        found.append({"spins": spins, "ratio": ratio, "alone": alone, "both": both, "turns": turns})
        print(f"{spins} spins: two runs take {ratio:.2f} × one")
    save_results(options.out, found)


if __name__ == "__main__":
    main()
