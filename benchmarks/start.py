"""What a user waits for before the first update: `derts train` and `derts --help`, in parts.

    python benchmarks/start.py --out results/start-cpu.json
    python benchmarks/start.py -- --data my-store --preset gpu     # other settings of derts train

Every repeat is a process of its own, so whatever is kept between processes (compiled kernels, files
that the system has read before) is there from the second on: `first` is the repeat that may have
lacked it. The command is the real one; it is stopped after its third update.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PARTS = ("python", "torch", "derts", "options", "data", "building", "first update")


class Enough(BaseException):
    """Three updates are made."""


def child(words: list[str], started: float) -> None:
    """One start of `derts train`, in this process; prints when each part was over."""
    ends = {"python": time.monotonic()}
    import torch

    ends["torch"] = time.monotonic()
    import derts.commands.parse as command
    from derts import cli
    from derts.training import run
    from derts.training.trainer import Trainer

    ends["derts"] = time.monotonic()

    def ending(owner: Any, name: str, part: str, before: str = "") -> None:
        kept: Callable[..., Any] = getattr(owner, name)

        def timed(*given: Any, **named: Any) -> Any:
            if before:
                ends.setdefault(before, time.monotonic())
            found = kept(*given, **named)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            ends.setdefault(part, time.monotonic())
            return found

        setattr(owner, name, timed)

    ending(command, "parse", "options")
    ending(run, "open_data", "data")
    ending(Trainer, "step", "first update", before="building")
    first_step = Trainer.step
    steps: list[float] = []

    def step(self: Trainer) -> Any:
        if len(steps) == 3:
            raise Enough
        begun = time.monotonic()
        found = first_step(self)
        steps.append(time.monotonic() - begun)
        return found

    Trainer.step = step  # type: ignore[method-assign]
    with contextlib.suppress(Enough):
        cli.main(["train", *words, "--quiet"])
    times = [started, *(ends[part] for part in PARTS)]
    parts = {part: times[at + 1] - times[at] for at, part in enumerate(PARTS)}
    found = {**parts, "all": times[-1] - started, "an update after": steps[-1]}
    print(json.dumps({"parts": found, "torch.compile": "torch._dynamo" in sys.modules}))


def main() -> None:
    """Start many times; print and write medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help="of derts train (default: --preset demo)")
    options = parser.parse_args()
    if options.child is not None:
        child(options.words, options.child)
        return
    from timing import save_results

    words = options.words or ["--preset", "demo"]
    about: dict[str, Any] = {"command": f"derts train {' '.join(words)}", "loads": []}
    starts, helps = [], []
    for _ in range(options.repeats):
        about["loads"].append(os.getloadavg()[0])
        with tempfile.TemporaryDirectory() as folder:
            given = ["--", *words, "--out", f"{folder}/run"]
            command = [sys.executable, __file__, "--child", str(time.monotonic()), *given]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        starts.append(json.loads(done.stdout.splitlines()[-1]))
        begun = time.monotonic()
        command = [sys.executable, "-m", "derts", "--help"]
        subprocess.run(command, capture_output=True, check=True)
        helps.append(time.monotonic() - begun)
    rows: list[dict[str, Any]] = []
    rows.append({"what": "derts --help", "seconds": statistics.median(helps), "all": helps})
    for part in starts[0]["parts"]:
        each = [start["parts"][part] for start in starts]
        rows.append({"what": part, "seconds": statistics.median(each), "all": each})
    for row in rows:
        spread = f"{min(row['all']):.2f} to {max(row['all']):.2f}, first {row['all'][0]:.2f}"
        print(f"{row['what']:<16} {row['seconds']:.2f} s ({spread})")
    about["loaded torch.compile"] = starts[0]["torch.compile"]
    save_results(options.out, [{**about, "parts": rows}])


if __name__ == "__main__":
    main()
