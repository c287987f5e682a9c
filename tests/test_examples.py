"""The examples run as they are."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from derts.cli import run

EXAMPLES = Path(__file__).parents[1] / "examples"


def output_of(name: str, *arguments: str, warnings: str = "error") -> str:
    """What an example prints; it must end well."""
    done = subprocess.run(
        [sys.executable, "-W", warnings, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def learned(shown: str) -> tuple[float, float]:
    """Accuracy before and after."""
    found = {name: float(number) for name, number in re.findall(r"(before|after): ([\d.]+)", shown)}
    return found["before"], found["after"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own_loop.py", "data_loader.py", "easyfsl_sampler.py"])
def test_a_strangers_loop_learns(name: str) -> None:
    before, after = learned(output_of(name))
    assert after > 45  # chance is 20
    assert after > before


@pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason="Lightning is not installed"
)
def test_lightning_learns() -> None:
    # Lightning has warnings of its own about loaders without workers
    before, after = learned(output_of("lightning_loop.py", warnings="ignore"))
    assert after > 45
    assert after > before


@pytest.mark.slow
def test_own_images(photos: Path, tmp_path: Path) -> None:
    words = ["train", "--data", "glyphs-40x10", "--model.width", "4", "--updates", "2"]
    words += ["--tasks.query", "3", "--evaluation.tasks", "4", "--evaluation.query", "3", "--quiet"]
    assert run([*words, "--meta-batch", "2", "--out", str(tmp_path / "run")]) == 0
    query = photos / "letter-00"
    shown = output_of("own_images.py", str(tmp_path / "run"), str(photos), str(query))
    assert len(shown.splitlines()) == len(list(query.iterdir()))
    assert all(re.fullmatch(r"\S+  letter-\d\d  [01]\.\d\d", line) for line in shown.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["choose_tasks.ipynb", "wrong_folders.ipynb"])
def test_notebooks(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Their code runs as it is, and what they show is what it prints (numbers may differ)."""
    space: dict[str, object] = {}
    shown: list[str] = []
    for cell in json.loads((EXAMPLES / name).read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        exec("".join(cell["source"]), space)
        pictures = ["image/png" in one.get("data", {}) for one in cell["outputs"]]
        assert sum(pictures) == len(plt.get_fignums())
        plt.close("all")
        kept = "".join(line for one in cell["outputs"] for line in one.get("text", []))
        shown.append(capsys.readouterr().out)
        assert len(shown[-1].splitlines()) == len(kept.splitlines())
    last = "".join(shown)
    if name == "choose_tasks.ipynb":
        before, after = learned(last)
        assert after > before + 5
        return
    found, looked = re.findall(r"(\d+) of the (\d+) least trusted are misplaced", last)[0]
    assert int(found) > 0.8 * int(looked)
    right, of = re.findall(r"(\d+) of (\d+) labelled rightly", last)[0]
    assert int(right) > 0.4 * int(of)  # chance is a fifth


def test_every_example_is_tested() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert all(file.name in text for file in EXAMPLES.iterdir() if file.is_file())
