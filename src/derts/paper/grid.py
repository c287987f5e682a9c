"""Many runs: one after the other on one device, or one worker process per device."""

from __future__ import annotations

import gc
import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Literal

import torch

from derts.config import HardwareConfig
from derts.data import open_data
from derts.errors import DertsError
from derts.files import write_atomically
from derts.hardware import choose_device
from derts.memory import keep_freed_memory
from derts.paper.board import Board
from derts.paper.runs import GridRun
from derts.progress import Advance
from derts.training.run import stop_requests, train_in
from derts.training.step import place_table
from derts.training.trainer import Tables

Ending = Literal["finished", "stopped", "failed"]


class GridWorker:
    """Does runs one after the other on one device; data stays there from run to run."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.tables: dict[str, Tables] = {}

    def do(
        self, run: GridRun, advance: Advance, stopping: Callable[[], bool]
    ) -> tuple[Ending, str]:
        """Train a run; how it ended, with its accuracy or, where it failed, why.

        A failure that is not a plain mistake leaves error.txt behind.
        """
        hardware = replace(run.config.hardware, device=self.device)
        config = replace(run.config, hardware=hardware)
        try:
            result = train_in(
                run.folder,
                config,
                self._data(config.data),
                until=run.until,
                points=run.points,
                warmup=run.warmup,
                advance=advance,
                stopping=stopping,
            )
            if result is None:
                return "stopped", ""
            return "finished", f"accuracy {result['accuracy']:.2f}%"
        except Exception as error:  # one run's failure is not the grid's
            lines = str(error).splitlines()
            reason = lines[0] if lines else type(error).__name__
            if not isinstance(error, DertsError):
                reason = f"{type(error).__name__}: {reason} (see {run.folder / 'error.txt'})"
                run.folder.mkdir(parents=True, exist_ok=True)
                write_atomically(run.folder / "error.txt", traceback.format_exc().encode())
            return "failed", reason
        finally:
            if torch.cuda.is_initialized():
                gc.collect()  # a trainer refers to itself: give back now what it holds of the GPU

    def _data(self, name: str) -> Tables:
        if name not in self.tables:
            device = choose_device(HardwareConfig(device=self.device))
            self.tables[name] = {
                split: place_table(table, device) for split, table in open_data(name).items()
            }
        return self.tables[name]


@dataclass
class Endings:
    """How the runs ended; `failed` with reasons."""

    finished: list[GridRun] = field(default_factory=list)
    failed: dict[GridRun, str] = field(default_factory=dict)
    stopped: bool = False

    def note(self, run: GridRun, ending: Ending, note: str, board: Board) -> None:
        if ending == "finished":
            self.finished.append(run)
        elif ending == "failed":
            self.failed[run] = note
        else:
            self.stopped = True
        board.ended(run, ending, note)

    def check(self) -> None:
        """A DertsError unless all is done."""
        if self.stopped:
            raise DertsError(
                "interrupted: finished runs and checkpoints are kept, run the same command to go on"
            )
        if self.failed:
            run, reason = next(iter(self.failed.items()))
            raise DertsError(
                f"{len(self.failed)} of {len(self.failed) + len(self.finished)} runs failed; "
                f"the first, {run}: {reason}"
            )


def find_devices(words: Sequence[str]) -> list[str]:
    """The devices named; `auto` is every GPU, or the CPU where there is none.

    >>> find_devices(["cpu", "cpu"])
    ['cpu', 'cpu']
    """
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


def run_grid(runs: Sequence[GridRun], devices: Sequence[str], board: Board) -> Endings:
    """Do all runs; a failure stops no other, Ctrl-C stops all at the next update."""
    with stop_requests() as stopping:
        if len(devices) == 1:
            return _run_here(runs, devices[0], board, stopping)
        return _run_in_processes(runs, devices[: len(runs)], board, stopping)


def _run_here(
    runs: Sequence[GridRun], device: str, board: Board, stopping: Callable[[], bool]
) -> Endings:
    worker, endings = GridWorker(device), Endings()
    for run in runs:
        if stopping():
            endings.stopped = True
            break
        board.started(run, device)

        def advance(count: int = 1, note: str | None = None, run: GridRun = run) -> None:
            board.advanced(run, count, note)

        endings.note(run, *worker.do(run, advance, stopping), board)
    return endings


@dataclass
class WorkerProcess:
    """A worker process, the pipe to it, and what it is doing."""

    process: BaseProcess
    pipe: Connection
    device: str
    run: GridRun | None = None

    def take(self, waiting: deque[GridRun], board: Board) -> None:
        """Begin the next run, if there is one."""
        self.run = waiting.popleft() if waiting else None
        if self.run is not None:
            board.started(self.run, self.device)
            self.pipe.send(self.run)


def _run_in_processes(
    runs: Sequence[GridRun], devices: Sequence[str], board: Board, stopping: Callable[[], bool]
) -> Endings:
    # spawned, not forked: CUDA does not survive a fork
    context = multiprocessing.get_context("spawn")
    workers = []
    for device in devices:
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, device, len(devices)))
        process.start()
        theirs.close()
        workers.append(WorkerProcess(process, ours, device))
    waiting, endings = deque(runs), Endings()
    try:
        for worker in workers:
            worker.take(waiting, board)
        while busy := [worker for worker in workers if worker.run is not None]:
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
    for run in waiting:
        endings.note(run, "failed", "no worker process was left to run it", board)
    return endings


def _listen(worker: WorkerProcess, waiting: deque[GridRun], board: Board, endings: Endings) -> None:
    run = worker.run
    assert run is not None
    try:
        kind, *content = worker.pipe.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join(timeout=10)
        code = worker.process.exitcode
        reason = f"its worker process died (exit code {code}): is memory short?"
        endings.note(run, "stopped" if endings.stopped else "failed", reason, board)
        worker.run = None
        return
    if kind == "advanced":
        board.advanced(run, *content)
    else:
        ending, note = content
        endings.note(run, ending, note, board)
        worker.take(waiting, board)


def _work(pipe: Connection, device: str, workers: int) -> None:
    """A worker process: takes runs from the pipe until it is closed."""
    keep_freed_memory()
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    worker = GridWorker(device)
    with stop_requests() as stopping:
        # Ctrl-C reaches every process of a terminal; the parent passes it on as SIGTERM, once
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            try:
                run = pipe.recv()
            except (EOFError, OSError):
                return

            def advance(count: int = 1, note: str | None = None) -> None:
                pipe.send(("advanced", count, note))

            pipe.send(("ended", *worker.do(run, advance, stopping)))
