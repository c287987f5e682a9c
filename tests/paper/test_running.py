"""Runs of the grid: done once, resumed, shared, and on several workers."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from derts.clock import seconds_per_update
from derts.data import open_data
from derts.errors import DertsError
from derts.files import locked
from derts.paper.board import Board, board
from derts.paper.collecting import collect
from derts.paper.grid import alone_in, find_devices, run_grid
from derts.paper.job import Folders, Job, make_jobs, point_file, to_run
from derts.paper.known import Known
from derts.paper.outcomes import load_outcomes, save_outcomes
from derts.paper.recipe import cells, keep_only
from derts.paper.report import JUDGED_BY_BEST, make_report
from derts.paper.running import Worker, run_job
from derts.paper.scale import Scale, parse_datasets
from derts.tasks import TaskPool
from derts.training import Trainer
from derts.training.bad_numbers import BadNumbersError
from derts.training.checkpoint import checkpoint_files, load_checkpoint
from derts.training.run_folder import Run


def result(job: Job, update: int) -> list[float]:
    found: list[float] = json.loads(point_file(job.folder, update).read_text())["accuracies"]
    return found


def weights(job: Job) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_checkpoint(
        checkpoint_files(job.folder / "checkpoints")[-1]
    )["learner"]
    return found


def by_strategy(jobs: list[Job], name: str) -> Job:
    (job,) = [job for job in jobs if job.setting.strategy == name]
    return job


def elsewhere(job: Job, folder: Path) -> Job:
    return replace(job, folder=folder / "run", warmup=folder / "warm-up")


def test_one_run_gives_all_its_points_and_leaves_nothing_to_do(protonet_jobs: list[Job]) -> None:
    job = by_strategy(protonet_jobs, "derts")
    assert job.points == (1, 3, 10)
    assert run_job(job, open_data("glyphs"))
    assert all(point_file(job.folder, update).is_file() for update in job.points)
    assert (job.folder / "result.json").is_file()
    events = list(Run.open(job.folder).events())
    assert sum(event["event"] == "validation" for event in events) == 10
    assert to_run({(job.setting, 0): job}) == []


def test_runs_of_few_classes_are_judged_by_their_best_weights(tiny: None, tmp_path: Path) -> None:
    only = ["shot=5", "learner=protonet", "strategy=random,strategy=derts"]
    found = keep_only(cells("table3"), only)
    jobs = make_jobs(found, [0], Scale(parse_datasets(["glyphs"]), 0.001), Folders(tmp_path))
    for job in jobs.values():
        assert run_job(job, open_data("glyphs"))
        chosen = json.loads(point_file(job.folder, 10).read_text())["weights_of_update"]
        events = Run.open(job.folder).events()
        seen = {e["update"]: e["accuracy"] for e in events if e["event"] == "validation"}
        assert seen[chosen] == max(seen.values())
    outcomes = collect(found, jobs, Known())
    assert {one.judged_by_best for seeds in outcomes.values() for one in seeds.values()} == {True}
    report = make_report("table3", "title", found, outcomes, [])
    assert JUDGED_BY_BEST in report.notes
    save_outcomes(tmp_path / "out.json", "table3", found, outcomes, [])
    again = load_outcomes(tmp_path / "out.json")[1]
    for key, seeds in outcomes.items():
        assert again[key][0].weights_of_update == seeds[0].weights_of_update
        assert again[key][0].correct == seeds[0].correct
        assert again[key][0].judged_by_best


def test_a_run_that_was_stopped_goes_on_as_if_never_stopped(
    protonet_jobs: list[Job], tmp_path: Path
) -> None:
    tables = open_data("glyphs")
    job = by_strategy(protonet_jobs, "derts")
    whole = elsewhere(job, tmp_path / "whole")
    run_job(whole, tables)
    asked = iter([False] * 9 + [True] * 99)
    assert not run_job(job, tables, stopping=lambda: next(asked))
    stood = load_checkpoint(checkpoint_files(job.folder / "checkpoints")[-1])["update"]
    assert 0 < stood < job.until
    assert to_run({(job.setting, 0): job}) == [job]
    assert run_job(job, tables)
    assert result(job, 10) == result(whole, 10)
    assert all(torch.equal(value, weights(whole)[key]) for key, value in weights(job).items())
    updates = [event["update"] for event in Run.open(job.folder).events()]
    assert updates == sorted(updates)


def test_a_run_can_go_further_later(protonet_jobs: list[Job], tmp_path: Path) -> None:
    tables = open_data("glyphs")
    job = by_strategy(protonet_jobs, "paper")
    whole = elsewhere(job, tmp_path / "whole")
    run_job(whole, tables)
    first = replace(job, until=3)
    assert run_job(first, tables)
    assert to_run({(job.setting, 0): first}) == []
    assert to_run({(job.setting, 0): job}) == [job]
    assert run_job(job, tables)
    assert [result(job, at) for at in job.points] == [result(whole, at) for at in job.points]


def test_strategies_start_from_one_warm_up(protonet_jobs: list[Job], tmp_path: Path) -> None:
    tables = open_data("glyphs")
    jobs = [
        replace(
            job,
            points=(4, 10),
            config=replace(job.config, strategy=replace(job.config.strategy, warmup=4)),
        )
        for job in protonet_jobs
    ]
    for job in jobs:
        run_job(job, tables)
    assert len({job.warmup for job in jobs}) == 1
    assert len({tuple(result(job, 4)) for job in jobs}) == 1
    alone = elsewhere(by_strategy(jobs, "derts"), tmp_path / "alone")
    run_job(alone, tables)
    assert result(alone, 10) == result(by_strategy(jobs, "derts"), 10)
    # what happened in the warm-up is told by every run
    for job in jobs:
        seen = [e["update"] for e in Run.open(job.folder).events() if e["event"] == "validation"]
        assert seen == list(range(1, 11))


def test_a_run_past_its_point_says_so(protonet_jobs: list[Job]) -> None:
    tables = open_data("glyphs")
    job = replace(by_strategy(protonet_jobs, "random"), points=(10,))
    run_job(job, tables)
    with pytest.raises(DertsError, match="remove the folder"):
        run_job(replace(job, until=3), tables)


def test_time_per_update_leaves_out_what_compiles(protonet_jobs: list[Job]) -> None:
    def update(at: int, seconds: float) -> dict[str, object]:
        return {"event": "update", "update": at, "seconds": {"update": seconds, "evaluation": 50}}

    start = {"event": "start", "update": 0}
    assert seconds_per_update([start, update(10, 60.0)], 0) == 6.0
    assert seconds_per_update([start, update(10, 60.0), update(20, 2.0)], 0) == 0.2
    resumed = [start, update(10, 60.0), update(20, 2.0), {"event": "start", "update": 20}]
    assert seconds_per_update([*resumed, update(30, 70.0), update(40, 4.0)], 0) == 0.3
    assert seconds_per_update([], 0) is None


def test_a_failure_stops_no_other_run(protonet_jobs: list[Job], tmp_path: Path) -> None:
    good, other = protonet_jobs[:2]
    lost = replace(other, config=replace(other.config, data=str(tmp_path / "nowhere")))
    endings = run_grid([lost, good], ["cpu"], Board([lost, good], None))
    assert endings.finished == [good]
    assert "does not exist" in endings.failed[lost]
    with pytest.raises(DertsError, match="1 of 2 runs failed"):
        endings.check()


def test_an_unforeseen_error_is_kept_in_the_run_folder(
    protonet_jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bool:
        raise RuntimeError("out of memory\nand so on")

    monkeypatch.setattr("derts.paper.running.run_job", broken)
    job = protonet_jobs[0]
    ending, reason = Worker("cpu").run(job, lambda count=1, note=None: None, lambda: False)
    assert (ending, reason.startswith("RuntimeError: out of memory (see ")) == ("failed", True)
    assert "Traceback" in (job.folder / "error.txt").read_text()


class Impatient(Board):
    """Asks the process to end while the first run is under way, as a batch system does."""

    def advanced(self, job: Job, count: int, note: str | None) -> None:
        super().advanced(job, count, note)
        if count and self.lines[job].update == 3:
            signal.raise_signal(signal.SIGTERM)


def test_a_process_asked_to_end_saves_and_goes_on_when_run_again(
    protonet_jobs: list[Job],
) -> None:
    first, second = protonet_jobs[:2]
    endings = run_grid([first, second], ["cpu"], Impatient([first, second], None))
    assert (endings.stopped, endings.finished, endings.failed) == (True, [], {})
    assert checkpoint_files(first.folder / "checkpoints")
    assert not second.folder.exists()
    with pytest.raises(DertsError, match="run the same command to go on"):
        endings.check()
    again = run_grid([first, second], ["cpu"], Board([first, second], None))
    assert again.finished == [first, second]
    events = Run.open(first.folder).events()
    assert [event["update"] for event in events if event["event"] == "start"] == [0, 3]


def test_two_workers_share_the_jobs(
    protonet_jobs: list[Job], capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = [
        replace(
            job, config=replace(job.config, seed=seed), folder=job.folder.with_name(f"{n}{seed}")
        )
        for n, job in enumerate(protonet_jobs)
        for seed in range(2)
    ]
    with board(seeds, quiet=False) as shown:
        endings = run_grid(seeds, find_devices(["cpu", "cpu"]), shown)
    assert {job.folder for job in endings.finished} == {job.folder for job in seeds}
    assert not endings.failed
    assert all(point_file(job.folder, job.until).is_file() for job in seeds)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(seeds)
    assert said[-1].startswith("6/6 runs; finished ")


def test_two_commands_keep_out_of_each_others_way(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    taken = pytest.raises(DertsError, match="another derts reproduce is at work")
    with alone_in(tmp_path), taken, alone_in(tmp_path):
        pass
    with alone_in(tmp_path):
        pass


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
        wait_until(lambda: "its worker process died (exit code -9)" in said.read_text(), process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the group
        assert process.wait(timeout=60) == 2
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert "interrupted: finished runs and checkpoints are kept" in said.read_text()
    assert "Traceback" not in said.read_text()
    assert any(checkpoint_files(folder / "checkpoints") for folder in at_work())


def test_a_result_is_there_only_once_its_model_is(
    protonet_jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the last checkpoint and the result: the result comes when run again."""
    tables = open_data("glyphs")
    job = by_strategy(protonet_jobs, "random")
    whole = elsewhere(job, tmp_path / "whole")
    run_job(whole, tables)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Run, "write_result", killed)
        with pytest.raises(KeyboardInterrupt):
            run_job(replace(job, points=(10,)), tables)
    assert checkpoint_files(job.folder / "checkpoints")[-1].name == "update-0000010.ckpt"
    assert to_run({(job.setting, 0): job}) == [job]
    assert run_job(job, tables)
    assert result(job, 10) == result(whole, 10)
    assert (job.folder / "result.json").is_file()


def test_a_damaged_checkpoint_or_warm_up_costs_no_run(
    protonet_jobs: list[Job], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = open_data("glyphs")
    job = by_strategy(protonet_jobs, "derts")
    job = replace(
        job,
        points=(4, 10),
        config=replace(
            job.config, checkpoint_every=2, strategy=replace(job.config.strategy, warmup=4)
        ),
    )
    whole = elsewhere(job, tmp_path / "whole")
    run_job(whole, tables)
    asked = iter([False] * 9 + [True] * 99)
    assert not run_job(job, tables, stopping=lambda: next(asked))
    newest = checkpoint_files(job.folder / "checkpoints")[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    assert run_job(job, tables)
    assert f"{newest} is damaged" in capsys.readouterr().err
    assert all(torch.equal(value, weights(whole)[key]) for key, value in weights(job).items())
    (shared,) = checkpoint_files(job.warmup)
    shared.write_bytes(b"")
    other = replace(job, folder=tmp_path / "other")
    assert run_job(other, tables)
    assert "the warm-up is done again" in capsys.readouterr().err
    assert result(other, 10) == result(whole, 10)
    assert load_checkpoint(shared)["update"] == 4


def test_a_full_disk_and_bad_numbers_are_named(
    protonet_jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = protonet_jobs[0]

    def quiet(count: int = 1, note: str | None = None) -> None:
        pass

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("derts.training.driver.save_checkpoint", full)
        ending, reason = Worker("cpu").run(job, quiet, lambda: False)
    assert (ending, "free some space, then run this again" in reason) == ("failed", True)
    assert not (job.folder / "error.txt").exists()

    def bad(trainer: Trainer, *_: object) -> None:
        raise BadNumbersError("not finite", trainer.draw(2, "check", 0))

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", bad)
        ending, reason = Worker("cpu").run(job, quiet, lambda: False)
    assert (ending, reason.startswith("not finite (2 of its tasks are in ")) == ("failed", True)
    assert len(TaskPool.load(job.folder / "bad-tasks.safetensors")) == 2
    assert Worker("cpu").run(job, quiet, lambda: False)[0] == "finished"


def test_a_run_folder_in_use_is_left_alone(protonet_jobs: list[Job]) -> None:
    pytest.importorskip("fcntl")
    job = protonet_jobs[0]
    with locked(job.folder), pytest.raises(DertsError, match="is in use by process"):
        run_job(job, open_data("glyphs"))
