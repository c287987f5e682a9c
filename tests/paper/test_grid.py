"""Runs of the grid: points, going on, failures, several processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from derts.errors import DertsError
from derts.paper.cells import cells, keep_only
from derts.paper.collect import collect
from derts.paper.grid import do_run, find_devices, run_grid
from derts.paper.report import BEST_WEIGHTS, table_report
from derts.paper.runs import GridRun, Scale, make_runs, parse_datasets, to_run
from derts.progress import Advance
from derts.training.checkpoint import checkpoint_files
from derts.training.run_folder import Run, point_file

pytestmark = pytest.mark.slow


def do(run: GridRun, stopping: Callable[[], bool] = lambda: False) -> tuple[str, str]:
    return do_run(run, "cpu", stopping=stopping)


def answers(run: GridRun) -> list[list[float]]:
    files = (point_file(run.folder, update) for update in run.points)
    return [json.loads(file.read_text())["accuracies"] for file in files]


def elsewhere(run: GridRun, folder: Path) -> GridRun:
    return replace(run, folder=folder / "run", warmup=folder / "warm-up")


def test_one_run_gives_all_its_points_and_leaves_nothing_to_do(
    protonet_runs: list[GridRun],
) -> None:
    run = protonet_runs[-1]
    assert run.points == (1, 3, 10)
    ending, note = do(run)
    assert (ending, note.startswith("accuracy ")) == ("finished", True)
    assert len(answers(run)) == 3
    assert (run.folder / "result.json").is_file()
    events = list(Run.open(run.folder).events())
    assert sum(event["event"] == "validation" for event in events) == 10
    assert to_run([run]) == []


def test_a_run_goes_on_where_it_was_stopped_and_further_later(
    protonet_runs: list[GridRun], tmp_path: Path
) -> None:
    run = protonet_runs[-1]
    whole, early = elsewhere(run, tmp_path / "whole"), replace(run, until=3)
    assert do(whole)[0] == "finished"
    asked = iter([False] * 5 + [True] * 99)
    assert do(run, lambda: next(asked)) == ("stopped", "")
    assert to_run([run]) == [run]
    assert do(early)[0] == "finished"
    assert to_run([early]) == []
    assert do(run)[0] == "finished"
    assert answers(run) == answers(whole)


def test_strategies_start_from_one_warm_up(protonet_runs: list[GridRun], tmp_path: Path) -> None:
    runs = []
    for run in protonet_runs:
        strategy = replace(run.config.strategy, warmup=4)
        config = replace(run.config, strategy=strategy)
        runs.append(replace(run, points=(4, 10), config=config))
    assert all(do(run)[0] == "finished" for run in runs)
    assert len({run.warmup for run in runs}) == 1
    assert len({tuple(answers(run)[0]) for run in runs}) == 1
    alone = elsewhere(runs[-1], tmp_path / "alone")
    assert do(alone)[0] == "finished"
    assert answers(alone) == answers(runs[-1])


def test_runs_of_few_classes_are_judged_by_their_best_weights(tiny: None, tmp_path: Path) -> None:
    found = keep_only(cells("table3"), ["shot=5,learner=protonet,strategy=random"])
    runs = make_runs(found, [0], Scale(parse_datasets(["glyphs"]), 0.001), tmp_path)
    (run,) = runs
    assert do(run)[0] == "finished"
    events = Run.open(run.folder).events()
    seen = {e["update"]: e["accuracy"] for e in events if e["event"] == "validation"}
    results = collect(found, runs, {})
    chosen = results[run.setting, 1.0][0].weights_of_update
    assert seen[chosen] == max(seen.values())
    assert BEST_WEIGHTS in table_report("table3", found, results).notes


def test_a_failure_stops_no_other_run(
    protonet_runs: list[GridRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, other = protonet_runs[:2]
    lost = replace(other, config=replace(other.config, data=str(tmp_path / "nowhere")))
    endings = run_grid([lost, good], ["cpu"])
    assert endings.finished == [good]
    assert "does not exist" in endings.failed[lost]
    with pytest.raises(DertsError, match="1 of 2 runs failed"):
        endings.check()

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory\nand so on")

    monkeypatch.setattr("derts.paper.grid.train_in", broken)
    ending, reason = do(other)
    assert (ending, reason.startswith("RuntimeError: out of memory (see ")) == ("failed", True)
    assert "Traceback" in (other.folder / "error.txt").read_text()


def test_a_process_asked_to_end_saves_and_goes_on_when_run_again(
    protonet_runs: list[GridRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def impatient(*_: object, **__: object) -> Iterator[Advance]:
        """Asks the process to end while the first run is under way, as a batch system does."""
        counts: list[int] = []

        def advance(count: int = 1, note: str | None = None, *, before: bool = False) -> None:
            counts.append(count)
            if sum(counts) == 3:
                signal.raise_signal(signal.SIGTERM)

        yield advance

    first, second = protonet_runs[:2]
    with monkeypatch.context() as patch:
        patch.setattr("derts.paper.grid.progress", impatient)
        endings = run_grid([first, second], ["cpu"])
    assert (endings.stopped, endings.finished, endings.failed) == (True, [], {})
    assert checkpoint_files(first.folder / "checkpoints")
    assert not second.folder.exists()
    with pytest.raises(DertsError, match="run the same command to go on"):
        endings.check()
    again = run_grid([first, second], ["cpu"])
    assert again.finished == [first, second]
    events = Run.open(first.folder).events()
    assert [event["update"] for event in events if event["event"] == "start"] == [0, 3]


@pytest.mark.slow
def test_two_workers_share_the_runs(
    protonet_runs: list[GridRun], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        replace(run, config=replace(run.config, seed=s), folder=run.folder.with_name(f"{n}{s}"))
        for n, run in enumerate(protonet_runs[1:])
        for s in range(2)
    ]
    endings = run_grid(runs, find_devices(["cpu", "cpu"]))
    assert {run.folder for run in endings.finished} == {run.folder for run in runs}
    assert not endings.failed
    assert all(point_file(run.folder, run.until).is_file() for run in runs)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(runs)
    assert said[-1].startswith("4/4 runs; finished ")


COMMAND = [
    sys.executable, "-m", "derts", "reproduce", "table3", "--dataset", "glyphs", "--seeds", "1",
    "--only", "strategy=random,learner=protonet", "--updates-scale", "0.5", "--devices", "cpu",
    "cpu",
]  # fmt: skip


def wait_until(true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)


def workers_of(process: subprocess.Popen[bytes]) -> list[int]:
    """Process numbers of the workers, the helper process of multiprocessing left out."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("this system does not list child processes")
    found = map(int, children.read_text().split())
    return [pid for pid in found if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.slow
def test_a_lost_worker_is_reported_and_an_interrupted_one_saves(in_folder: Path) -> None:
    def at_work() -> list[Path]:
        logs = Path().glob("runs/reproduce/glyphs/*/events.jsonl")
        return [path.parent for path in logs if '"update": 10,' in path.read_text()]

    said = in_folder / "said"
    with said.open("wb") as file:
        process = subprocess.Popen(
            COMMAND, stderr=file, stdout=subprocess.DEVNULL, start_new_session=True
        )
    try:
        wait_until(lambda: len(at_work()) == 2, process)
        os.kill(workers_of(process)[0], signal.SIGKILL)
        wait_until(lambda: "its worker process died" in said.read_text(), process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the group
        assert process.wait(timeout=60) == 130
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert "interrupted: finished runs and checkpoints are kept" in said.read_text()
    assert "Traceback" not in said.read_text()
    assert any(checkpoint_files(folder / "checkpoints") for folder in at_work())
