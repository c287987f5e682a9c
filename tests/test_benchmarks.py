"""The programs under benchmarks/ run, small, and the documents say what the results say."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


def test_the_documents_are_what_the_result_files_say() -> None:
    assert program("tables.py", "--check") == ""  # and exit code 0


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


def test_noisy_tasks_runs_and_never_makes_a_run_twice(tmp_path: Path) -> None:
    words = ["--data", "glyphs", "--preset", "--learners", "protonet", "--seeds", "0"]
    words += [
        "--updates",
        "3",
        "--warmup",
        "1",
        "--pool",
        "20",
        "--meta-batch",
        "2",
        "--width",
        "4",
    ]
    words += ["--out", str(tmp_path / "out.json")]
    first = program("noisy_tasks.py", *words, "--variants", "random", "derts")
    assert len(first.splitlines()) == 2
    second = program("noisy_tasks.py", *words, "--variants", "random", "derts", "paper clean")
    assert len(second.splitlines()) == 1
    runs = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert [run["variant"] for run in runs] == ["random", "derts", "paper clean"]


def test_updates_are_measured() -> None:
    shown = program("update.py", "--quick", "--learners", "protonet", "--backbones", "cnn4")
    assert [line.split(":")[0] for line in shown.splitlines()] == [
        "protonet cnn4 loop",
        "protonet cnn4 loop, bfloat16",
        "protonet cnn4 plain",
        "protonet cnn4 ours",
    ]


def test_overhead_is_measured(tmp_path: Path) -> None:
    words = ["--quick", "--learners", "anil", "--strategies", "random", "derts", "us", "ats"]
    program("overhead.py", *words, "--out", str(tmp_path / "out.json"))
    rows = json.loads((tmp_path / "out.json").read_text())["results"]
    assert [row["strategy"] for row in rows] == ["random", "derts", "us", "ats"]
    assert rows[0]["ratio"] == 1


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


def test_learning_curves_are_those_of_the_run(tmp_path: Path) -> None:
    only = "shot=1,learner=protonet,strategy=random"
    words = ["table1", "--dataset", "glyphs", "--only", only, "--updates-scale", "0.002"]
    command = [sys.executable, "-m", "derts", "reproduce", *words, "--seeds", "1"]
    command += ["--out", str(tmp_path / "runs")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    folders = sorted(map(str, (tmp_path / "runs" / "glyphs").iterdir()))
    program("learning_curves.py", *folders, "--out", str(tmp_path / "out.json"))
    rows = json.loads((tmp_path / "out.json").read_text())["runs"]
    for folder, row in zip(folders, rows, strict=True):
        result = json.loads((Path(folder) / "result.json").read_text())
        assert row["test"]["10"] == result["accuracy"]
        assert row["strategy"] == "random"
        assert len(row["validation"]) == 10


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


@pytest.mark.parametrize(
    ("part", "name", "value", "matters"),
    [
        ("strategy", "doubt", "none", True),
        ("optimiser", "lr", 0.123, True),
        ("hardware", "channels_last", False, False),
    ],
)
def test_rows_of_another_recipe_are_marked(
    part: str,
    name: str,
    value: object,
    matters: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from paper_tables import readme_of_paper

    def write(name: str, content: Any) -> None:
        (tmp_path / name).write_text(json.dumps(content))

    contents = {}
    for file in (ROOT / "results").glob("reproduce-*.json"):
        contents[file.name] = json.loads(file.read_text())
        write(file.name, contents[file.name])
    plain = [row[0] for row in readme_of_paper(tmp_path)]
    assert not any("†" in row for row in plain)
    for of, content in contents.items():
        if isinstance(content, dict) and content["table"] == "table1":
            for config in content["configs"].values():
                if part != "strategy" or config["strategy"]["name"] == "derts":
                    config[part][name] = value
        write(of, content)
    rows = [row[0] for row in readme_of_paper(tmp_path)]
    of_table1 = [row for row in plain if row.endswith(", clean")]
    assert [row for row in rows if "†" in row] == [f"{row} †" for row in of_table1 if matters]


def test_runs_with_a_preset_are_shown_with_it_and_are_not_the_recipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from paper_tables import paper_experiments

    def written() -> str:
        return paper_experiments(tmp_path, lambda rows: "\n".join(" | ".join(r) for r in rows))

    name = "reproduce-table1-x0.3-augment.json"
    content = json.loads((ROOT / "results" / name).read_text())
    (tmp_path / name).write_text(json.dumps(content))
    text = written()
    assert "derts reproduce table1 --dataset mini=stores/mini --preset gpu augment" in text
    assert "--updates-scale 0.3 --only" in text
    assert "†" not in text
    assert "315 of 315 cells have no number of ours" in text
    content["notes"] = [note.replace("gpu, augment", "gpu") for note in content["notes"]]
    (tmp_path / name).write_text(json.dumps(content))
    text = written()
    assert "†: made before the recipe had" in text
    assert "315 of 315" not in text
