"""Many runs: one after the other on one device, or one worker process per device."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from derts.errors import DertsError
from derts.memory import keep_freed_memory
from derts.paper.board import Board
from derts.paper.job import Job
from derts.paper.running import Ending, Worker
from derts.training.run import stop_requests


@dataclass
class Endings:
    """How the runs ended; `failed` with reasons."""

    finished: list[Job] = field(default_factory=list)
    failed: dict[Job, str] = field(default_factory=dict)
    stopped: bool = False

    def note(self, job: Job, ending: Ending, note: str, board: Board) -> None:
        if ending == "finished":
            self.finished.append(job)
        elif ending == "failed":
            self.failed[job] = note
        else:
            self.stopped = True
        board.ended(job, ending, note)

    def check(self) -> None:
        """A DertsError unless all is done."""
        if self.stopped:
            raise DertsError(
                "interrupted: finished runs and checkpoints are kept, run the same command to go on"
            )
        if self.failed:
            job, reason = next(iter(self.failed.items()))
            raise DertsError(
                f"{len(self.failed)} of {len(self.failed) + len(self.finished)} runs failed; "
                f"the first, {job}: {reason}"
            )


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Keep a second command out of a folder of runs while the first works in it.

    The lock goes with the process, however it ends. Where the system has no such locks
    (Windows) nothing is kept out.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DertsError(
                f"another derts reproduce is at work in {out}: wait for it, or choose another --out"
            ) from None
        except OSError:
            pass  # a file system without locks
        yield


def find_devices(words: Sequence[str]) -> list[str]:
    """The devices named; `auto` is every GPU, or the CPU where there is none.

    >>> find_devices(["cpu", "cpu"])
    ['cpu', 'cpu']
    """
    import torch

    from derts.config import HardwareConfig
    from derts.hardware import choose_device

    if not words:
        raise DertsError("--devices names none: give auto, or one device per worker")
    found: list[str] = []
    for word in words:
        if word == "auto":
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            found += [f"cuda:{number}" for number in range(count)] or ["cpu"]
        else:
            found.append(str(choose_device(HardwareConfig(device=word), "--devices")))
    return found


def run_grid(jobs: Sequence[Job], devices: Sequence[str], board: Board) -> Endings:
    """Do all jobs; a failure stops no other job, Ctrl-C stops all at the next update."""
    with stop_requests() as stopping:
        if len(devices) == 1:
            return _run_here(jobs, devices[0], board, stopping)
        return _run_in_processes(jobs, devices[: len(jobs)], board, stopping)


def _run_here(
    jobs: Sequence[Job], device: str, board: Board, stopping: Callable[[], bool]
) -> Endings:
    worker, endings = Worker(device), Endings()
    for job in jobs:
        if stopping():
            endings.stopped = True
            break
        board.started(job, device)

        def advance(count: int = 1, note: str | None = None, job: Job = job) -> None:
            board.advanced(job, count, note)

        endings.note(job, *worker.run(job, advance, stopping), board)
    return endings


@dataclass
class Process:
    """A worker process, the pipe to it, and what it is doing."""

    process: BaseProcess
    pipe: Connection
    device: str
    job: Job | None = None


def _run_in_processes(
    jobs: Sequence[Job], devices: Sequence[str], board: Board, stopping: Callable[[], bool]
) -> Endings:
    # spawned, not forked: CUDA does not survive a fork
    context = multiprocessing.get_context("spawn")
    workers = []
    for device in devices:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, device, len(devices)))
        process.start()
        theirs.close()
        workers.append(Process(process, ours, device))
    waiting, endings = deque(jobs), Endings()
    try:
        for worker in workers:
            _hand_out(worker, waiting, board)
        while busy := [worker for worker in workers if worker.job is not None]:
            if stopping() and (waiting or not endings.stopped):
                waiting.clear()
                endings.stopped = True
                for worker in busy:
                    worker.process.terminate()  # SIGTERM: saves a checkpoint, then answers
            ready = wait([worker.pipe for worker in busy], timeout=0.5)
            for worker in busy:
                if worker.pipe in ready:
                    _listen(worker, waiting, board, endings)
    finally:
        for worker in workers:
            worker.pipe.close()
        for worker in workers:
            worker.process.join(timeout=10)
            if worker.process.is_alive():
                worker.process.kill()
    if waiting:
        for job in waiting:
            endings.note(job, "failed", "no worker process was left to run it", board)
    return endings


def _hand_out(worker: Process, waiting: deque[Job], board: Board) -> None:
    worker.job = waiting.popleft() if waiting else None
    if worker.job is not None:
        board.started(worker.job, worker.device)
        worker.pipe.send(worker.job)


def _listen(worker: Process, waiting: deque[Job], board: Board, endings: Endings) -> None:
    job = worker.job
    assert job is not None
    try:
        kind, *content = worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join(timeout=10)
        code = worker.process.exitcode
        reason = f"its worker process died (exit code {code}): is memory short?"
        endings.note(job, "stopped" if endings.stopped else "failed", reason, board)
        worker.job = None
        return
    if kind == "advanced":
        board.advanced(job, *content)
    else:
        ending, note = content
        endings.note(job, ending, note, board)
        _hand_out(worker, waiting, board)


def _work(pipe: Connection, device: str, workers: int) -> None:
    """A worker process: takes jobs from the pipe until it is closed."""
    import torch

    keep_freed_memory()
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    worker = Worker(device)
    with stop_requests() as stopping:
        # Ctrl-C reaches every process of a terminal; the parent passes it on as SIGTERM, once
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            try:
                job = pipe.recv()
            except (EOFError, OSError):
                return

            def advance(count: int = 1, note: str | None = None) -> None:
                pipe.send(("advanced", count, note))

            pipe.send(("ended", *worker.run(job, advance, stopping)))
