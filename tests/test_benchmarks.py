"""The programs under benchmarks/ run, small, and the documents say what the results say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from derts.data import FeatureTable, save_table

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


def program(name: str, *words: str, folder: Path = ROOT) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / name), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_baseline_runs(tmp_path: Path) -> None:
    small = [
        "--updates",
        "2",
        "--maml-updates",
        "2",
        "--maml-batch",
        "1",
        "--seeds",
        "1",
        "--quick",
    ]
    shown = program("baseline.py", *small, "--preset", "--out", str(tmp_path / "out.json"))
    assert len(shown.splitlines()) == 3
    runs = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert [run["config"]["learner"]["name"] for run in runs] == ["protonet", "anil", "maml"]


def test_streaming_runs(tmp_path: Path) -> None:
    words = ["--limit-gib", "0.02", "--updates", "3", "--width", "4", "--meta-batch", "1"]
    program(
        "streaming.py",
        str(tmp_path / "out.json"),
        *words,
        "--device",
        "cpu",
        "--precision",
        "float32",
    )
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["gib"] >= 2 * found["limit_gib"]
    assert found["ratio"] > 0


def test_drawing_runs(tmp_path: Path) -> None:
    program("drawing.py", str(tmp_path / "out.json"), "--repeats", "1", "--busy", "0")
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["alone"].keys() == found["beside busy cores"].keys()
    assert all(row["ms"] > 0 for row in found["alone"].values())


def test_noisy_tasks_runs_and_never_makes_a_run_twice(tmp_path: Path) -> None:
    words = [
        "--data",
        "glyphs",
        "--preset",
        "--learners",
        "protonet",
        "--seeds",
        "0",
        "--updates",
        "3",
        "--warmup",
        "1",
    ]
    words += ["--pool", "20", "--meta-batch", "2", "--width", "4"]
    words += ["--out", str(tmp_path / "out.json"), "--variants"]
    variants = ["random", "random-votes swap40", "derts"]
    assert len(program("noisy_tasks.py", *words, *variants).splitlines()) == 3
    assert len(program("noisy_tasks.py", *words, *variants, "paper clean").splitlines()) == 1
    runs = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert [run["variant"] for run in runs] == [*variants, "paper clean"]


def test_updates_are_measured() -> None:
    shown = program("update.py", "--quick", "--learners", "protonet", "--backbones", "cnn4")
    assert [line.split(":")[0] for line in shown.splitlines()] == [
        "protonet cnn4 loop",
        "protonet cnn4 loop, bfloat16",
        "protonet cnn4 plain",
        "protonet cnn4 ours",
    ]


def test_a_start_is_taken_apart_and_waits_for_no_compiler(tmp_path: Path) -> None:
    small = ["--preset", "demo", "--model.width", "4", "--meta-batch", "1"]
    program("start.py", "--repeats", "1", "--out", str(tmp_path / "out.json"), "--", *small)
    (found,) = json.loads((tmp_path / "out.json").read_text())["results"]
    seconds = {row["what"]: row["seconds"] for row in found["parts"]}
    parts = [seconds[name] for name in ("python", "torch", "derts", "options", "data", "building")]
    assert sum(parts) + seconds["first update"] == pytest.approx(seconds["all"])
    assert found["loaded torch.compile"] is False


def test_an_update_on_a_cpu_is_measured_beside_its_floor(tmp_path: Path) -> None:
    words = ["--cpu", "--quick", "--repeats", "1", "--out", str(tmp_path / "out.json")]
    program("update.py", *words)
    rows = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [row["way"] for row in rows] == ["loop", "ours", "floor", "ours, bfloat16"] * 2
    assert all(row["ms"] > 0 for row in rows)


def test_two_runs_side_by_side_are_measured(tmp_path: Path) -> None:
    words = ["--turns", "1", "--updates", "1", "--spins", "1000"]
    program("side_by_side.py", *words, "--out", str(tmp_path / "o.json"))
    (found,) = json.loads((tmp_path / "o.json").read_text())["results"]
    assert len(found["turns"][0]["both"]) == 2
    assert found["ratio"] > 0


def test_overhead_is_measured(tmp_path: Path) -> None:
    words = ["--quick", "--learners", "anil", "--strategies", "random", "derts", "us", "ats"]
    program("overhead.py", *words, "--out", str(tmp_path / "out.json"))
    rows = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [row["strategy"] for row in rows] == ["random", "derts", "us", "ats"]
    assert rows[0]["ratio"] == 1


def test_label_trust_is_measured(tmp_path: Path) -> None:
    program("label_trust.py", "--quick", "--out", str(tmp_path / "out.json"))
    rows = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [row["noise"] for row in rows] == ["symmetric", "pair"]
    assert all(row["average_precision"] > 0.9 for row in rows)


def test_growth_is_measured(tmp_path: Path) -> None:
    program("growth.py", "--quick", "--out", str(tmp_path / "out.json"))
    rows = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [row["kind"] for row in rows] == [
        kind for kind in ("tasks", "size", "images", "pool") for _ in range(2)
    ]


def test_an_update_is_taken_apart(tmp_path: Path) -> None:
    program("breakdown.py", "--quick", "--out", str(tmp_path / "out.json"))
    rows = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [row["backbone"] for row in rows] == ["cnn4", "resnet12"]
    for row in rows:
        parts = sum(group["ms"] for group in row["groups"].values())
        assert 0 < parts == pytest.approx(row["kernels_ms"])


def test_redundant_pools_are_mostly_of_common_characters(tmp_path: Path) -> None:
    program("redundant_pools.py", "--quick", "--seeds", "0", "--out", str(tmp_path / "out.json"))
    runs = json.loads((tmp_path / "out.json").read_text())["runs"]
    shares = {run["variant"]: run["rare_share"] for run in runs}
    assert shares["random"] < 0.5 < shares["random, every task as likely"]


def test_without_a_gpu_the_kernels_are_not_checked() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "kernels.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode == 1:
        assert done.stderr.startswith("the kernels need an NVIDIA GPU and Triton")


def test_wrong_labels_run(tmp_path: Path) -> None:
    words = ["--quick", "--data", "glyphs-60x24", "--updates", "3", "--noise", "pair:0.25",
             "--learners", "anil", "--out", str(tmp_path / "out.json")]  # fmt: skip
    shown = program("wrong_labels.py", *words)
    found = json.loads((tmp_path / "out.json").read_text())
    rows = {row["variant"]: row for row in found["rows"]}
    assert rows.keys() >= {"clean", "random", "long", "paper", "derts", "cleaned", "oracle"}
    assert rows["oracle"]["images"] == rows["clean"]["images"] * 0.75
    assert rows["cleaned"]["updates_in_all"] == rows["long"]["updates"] == 6
    assert found["detection"][0]["true"] == 0.25
    assert "anil pair:0.25 oracle: " in shown
    assert ("cleanlab" in rows) != ("cleanlab is left out" in shown)
    again = program("wrong_labels.py", *words)  # all is there
    assert " s\n" not in again
    assert json.loads((tmp_path / "out.json").read_text())["rows"] == found["rows"]


def test_features_run(tmp_path: Path) -> None:
    program("features.py", "--quick", "--out", str(tmp_path / "out.json"))
    assert len(json.loads((tmp_path / "out.json").read_text())["results"]) == 8


def test_cleaned_examples(tmp_path: Path) -> None:
    labels = torch.arange(12).repeat_interleave(50)
    rows = torch.eye(12)[labels] + 0.01 * torch.randn(600, 12)
    save_table({"train": FeatureTable(rows, labels, tuple("abcdefghijkl"))}, tmp_path / "rows")
    out = tmp_path / "out.json"
    words = ["--features", str(tmp_path / "rows"), "--out", str(out), "--draws", "2"]
    program("cleaned_examples.py", *words, "--query", "5")
    cases = json.loads(out.read_text())["cases"]
    assert [(one["shot"], one["given"]) for one in cases[-1:]] == [(40, 100.0)]


def test_pieces_are_measured(tmp_path: Path) -> None:
    program("pieces.py", "--quick", "--repeats", "1", "--out", str(tmp_path / "out.json"))
    rows = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [row["limit"] for row in rows] == [None, 0.6]
    assert all(row["gib"] < 0.6 and row["ms"] > 0 for row in rows)
