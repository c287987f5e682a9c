"""The examples run as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_a_strangers_own_loop_learns() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "own_loop.py")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = {
        name: float(percent)
        for name, percent in re.findall(r"(before|after): ([\d.]+)", done.stdout)
    }
    assert found["after"] > 45  # chance is 20
    assert found["after"] > found["before"]
