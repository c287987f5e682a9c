"""A run that lasts, and a package that asks nobody: memory, files, network."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SOAK = Path(__file__).parents[1] / "benchmarks" / "soak_memory.py"

NO_NETWORK = """
import sys

asked = []

def refuse(event, arguments):
    if event.startswith("socket."):
        asked.append((event, str(arguments)))
        raise RuntimeError(f"the package asked for the network: {event} {arguments}")

sys.addaudithook(refuse)

from derts.cli import COMMANDS, run

TINY = ["--model.width", "4", "--tasks.way", "2", "--tasks.shot", "1", "--tasks.query", "2",
        "--meta-batch", "2", "--updates", "3", "--evaluation.tasks", "5", "--evaluation.query",
        "1", "--quiet"]
commands = {
    "data prepare": ["photos", "store", "--size", "16", "--workers", "1"],
    "data info": ["store"],
    "data verify": ["store"],
    "train": ["--data", "store", "--strategy.name", "derts", "--strategy.warmup", "1",
              "--strategy.pool", "12", *TINY, "--out", "run"],
    "evaluate": ["run"],
    "diagnose": ["run", "--pool", "20"],
    "select": ["g.npy", "--k", "2", "--out", "s.json"],
    "report": ["run", "-o", "report.html"],
    "runs": ["."],
    "compare": ["run", "run"],
    "export": ["run", "model.safetensors"],
    "predict": ["run", "--support", "photos", "--query", "inbox"],
    "inspect": ["run"],
    "clean": ["run", "cleaned"],
    "data corrupt": ["store", "wrong", "--rate", "0.2"],
    "completion": ["bash"],
    "reproduce": ["table3", "case-study", "--dataset", "glyphs", "--updates-scale", "0.0005",
                  "--seeds", "1", "--only", "strategy=derts,learner=anil,shot=5", "--devices",
                  "cpu", "--quiet"],
    "demo": ["--seeds", "1", "--updates", "42", "--small", "--quiet"],
}
for name, words in commands.items():
    code = run([*name.split(), *words])
    assert code == 0, (name, code)
assert not asked, asked
print("done", sorted(set(COMMANDS) - set(commands) - {"data embed"}))  # tested in tests/models
"""


@pytest.mark.slow
def test_no_command_asks_for_the_network(in_folder: Path) -> None:
    """Every socket call of the interpreter is refused while all commands run."""
    for number in range(9):
        (in_folder / "photos" / f"class-{number}").mkdir(parents=True)
        for copy in range(4):
            image = Image.new("RGB", (20, 20), (number * 25, copy * 40, 128))
            image.save(in_folder / "photos" / f"class-{number}" / f"{copy}.png")
    (in_folder / "inbox").mkdir()
    image.save(in_folder / "inbox" / "unknown.png")
    np.save("g.npy", np.arange(20.0).reshape(10, 2))
    answer = subprocess.run(
        [sys.executable, "-c", NO_NETWORK], capture_output=True, text=True, timeout=600
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-1] == "done []", "a command is not covered"


def test_the_refusal_would_be_noticed(in_folder: Path) -> None:
    begun = NO_NETWORK.partition("from derts.cli")[0]
    script = begun + "import socket\nsocket.getaddrinfo('localhost', 80)"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "asked for the network" in answer.stderr


@pytest.mark.slow
def test_files_stay_closed_and_the_record_small_over_a_run(in_folder: Path) -> None:
    """200 updates; 2,000 with a limit on memory are `make soak`."""
    command = [sys.executable, str(SOAK), "found.json", "--updates", "200", "--no-limit"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert answer.returncode == 0, answer.stderr
    found = json.loads((in_folder / "found.json").read_text())
    assert found["open_files_first"] == found["open_files_last"]
    assert found["record_bytes_per_update"] < 400


def test_growth_is_seen_where_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SOAK.parent))
    soak = runpy.run_path(str(SOAK), run_name="soak")
    samples = [soak["Sample"](50 * n, 300 + 0.5 * n, 7, 4000 * n) for n in range(1, 21)]
    assert soak["summary"](samples)["resident_mb_per_1000_updates"] == pytest.approx(10)
