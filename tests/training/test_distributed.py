"""Several processes: the same numbers as one, and no hang when one of them dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from derts.distributed import Group
from derts.training.checkpoint import checkpoint_files, load_checkpoint
from tests.tiny import TINY_WORDS

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
WORDS = [
    *TINY_WORDS, "--hardware.device", "cpu", "--checkpoint-every", "10",
    "--meta-batch", "4", "--out", "run",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one and two processes trained, by rank_host.py."""
    folder = tmp_path_factory.mktemp("ranks")
    jobs = [
        subprocess.Popen(
            [*launcher, "-m", "tests.training.rank_host", str(folder)],
            cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True,
        )
        for launcher in ([sys.executable], TORCHRUN)
    ]  # fmt: skip
    for job in jobs:
        said = job.communicate(timeout=300)[1]
        assert job.returncode == 0, said
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *(f"anil-{strategy}" for strategy in ("random", "derts", "us", "ats")),
        *(f"maml-{strategy}" for strategy in ("random", "derts", "us", "ats")),
        *(f"protonet-{strategy}" for strategy in ("random", "derts", "us")),
        "protonet-trust",
        "anil-pieces",
    ],
)
def test_two_processes_train_what_one_does(name: str, trained: Path) -> None:
    alone = torch.load(trained / f"{name}-0of1.pt")
    pair = [torch.load(trained / f"{name}-{rank}of2.pt") for rank in (0, 1)]
    for key, value in alone["learner"].items():
        torch.testing.assert_close(pair[0]["learner"][key], value, rtol=0, atol=1e-10)
        assert torch.equal(pair[0]["learner"][key], pair[1]["learner"][key])
    for other in pair:
        assert other["accuracies"] == alone["accuracies"]
        assert other["losses"] == pytest.approx(alone["losses"], abs=1e-6)
        assert other["tasks"] == alone["tasks"]


@pytest.mark.slow
def test_two_processes_select_in_two_rounds_what_one_does_in_two_shares(trained: Path) -> None:
    alone, *pair = (torch.load(trained / f"picks-{name}.pt") for name in ("0of1", "0of2", "1of2"))
    assert all(torch.equal(alone, picks) for picks in pair)


def test_shares_cover_all_tasks_once_and_add_up() -> None:
    for size in (1, 2, 3, 7):
        for count in (1, 2, 5, 14, 33):
            groups = [Group(rank, size) for rank in range(size)]
            assert sum(group.share(count) for group in groups) == pytest.approx(1)
            parts = [range(count)[group.part(count)] for group in groups]
            if count < 2 * size:
                assert all(len(part) == count for part in parts)
            else:
                assert [task for part in parts for task in part] == list(range(count))


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*TORCHRUN, "-m", "derts", "train", *words],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for_checkpoint(after: int, process: subprocess.Popen[str]) -> int:
    """The update of the first checkpoint beyond `after`."""
    limit = time.monotonic() + 120
    while process.poll() is None:
        assert time.monotonic() < limit
        names = [path.stem for path in checkpoint_files(Path("run/checkpoints"))]
        if names and (newest := int(names[-1].removeprefix("update-"))) > after:
            return newest
        time.sleep(0.05)
    raise AssertionError(process.communicate()[1])


def other_process(launcher: int) -> int:
    """The child of torchrun that does not hold the run's lock."""
    owner = int(Path("run/.lock").read_text())
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    (other,) = [
        child for child in map(int, children)
        if child != owner and b"derts" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]  # fmt: skip
    return other


@pytest.mark.slow
def test_a_killed_process_ends_the_job_and_any_number_goes_on(in_folder: Path) -> None:
    demo = [*WORDS, "--strategy.name", "derts", "--updates", "100000"]
    process = start(*demo)
    try:
        reached = wait_for_checkpoint(10, process)
        os.kill(other_process(process.pid), signal.SIGKILL)
        _, said = process.communicate(timeout=45)  # torchrun itself may wait for 30 seconds
    finally:
        process.kill()
    assert process.returncode != 0
    (line,) = [line for line in said.splitlines() if line.startswith("derts: ")]
    assert "lost contact with another one, which was killed or failed" in line
    assert "go on with derts train --resume run" in line

    process = start("--resume", "run", "--quiet")  # two again, now stopped as a user would
    try:
        wait_for_checkpoint(reached + 10, process)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=45)
    finally:
        process.kill()
    newest = load_checkpoint(checkpoint_files(Path("run/checkpoints"))[-1])["update"]
    stops = {line for line in said.splitlines() if line.startswith("derts: ")}
    assert stops == {
        f"derts: interrupted at update {newest}: all is saved, go on with derts train --resume run"
    }, said

    config = Path("run/config.toml")
    config.write_text(config.read_text().replace("updates = 100000", f"updates = {newest + 7}"))
    command = [sys.executable, "-m", "derts", "train", "--resume", "run", "--quiet"]
    answer = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(Path("run/result.json").read_text())["updates"] == newest + 7
    events = [json.loads(line) for line in Path("run/events.jsonl").read_text().splitlines()]
    updates = [event["update"] for event in events if event["event"] == "update"]
    assert updates == [*range(10, newest + 7, 10), newest + 7]


@pytest.mark.slow
def test_a_refusal_of_the_first_process_ends_the_others(in_folder: Path) -> None:
    (in_folder / "run").mkdir()
    (in_folder / "run" / "thesis.txt").write_text("years of work")
    process = start(*WORDS)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    lines = [line for line in said.splitlines() if line.startswith("derts: ")]
    assert any("run already exists: choose another --out" in line for line in lines)
    assert "derts/training" not in said  # torchrun shows its own traceback, we show none
