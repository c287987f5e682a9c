"""Many runs: one after the other, a process for each device, or an existing Ray cluster.

Ray repeats the runs of a node that is lost.
"""

import gc
import multiprocessing
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from derts.data.streaming import placed_tables
from derts.errors import DertsError, InterruptedRunError
from derts.files import write_atomically
from derts.hardware import choose_device, keep_freed_memory
from derts.paper.runs import GridRun
from derts.progress import Advance, clock_text, progress, unheard
from derts.training.run import PASSED_ON, stop_requests, train_in

Ending = Literal["finished", "stopped", "failed"]
TRIES = 4  # of a run whose node or process Ray has lost


def do_run(
    run: GridRun,
    device: str = "auto",
    advance: Advance = unheard,
    stopping: Callable[[], bool] = lambda: False,
) -> tuple[Ending, str]:
    """Train a run; how it ended, with its accuracy or, where it failed, why.

    A failure that is not a plain mistake leaves error.txt behind.
    """
    began = time.monotonic()
    config = replace(run.config, hardware=replace(run.config.hardware, device=device))
    try:
        result = train_in(
            run.folder, config, placed_tables(config.data, config.hardware), until=run.until,
            points=run.points, warmup=run.warmup, advance=advance, stopping=stopping,
        )  # fmt: skip
        taken = clock_text(time.monotonic() - began)
        return "finished", f"accuracy {result['accuracy']:.2f}% in {taken}"
    except InterruptedRunError:
        return "stopped", ""
    except DertsError as error:
        return "failed", str(error)
    except Exception as error:  # one run's failure is not the grid's
        told = run.folder / "error.txt"
        told.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(told, traceback.format_exc().encode())
        reason = str(error).partition("\n")[0]
        return "failed", f"{type(error).__name__}: {reason} (see {told})"
    finally:
        if torch.cuda.is_initialized():
            gc.collect()  # a trainer refers to itself: give back now what it holds of the GPU


@dataclass
class Endings:
    """How runs ended, `failed` with reasons; each ending is a line on standard error."""

    total: int
    quiet: bool = False
    finished: list[GridRun] = field(default_factory=list)
    failed: dict[GridRun, str] = field(default_factory=dict)
    stopped: bool = False

    def note(self, run: GridRun, ending: Ending, note: str) -> None:
        if ending == "finished":
            self.finished.append(run)
        elif ending == "failed":
            self.failed[run] = note
        else:
            self.stopped = True
        if not self.quiet:
            over = len(self.finished) + len(self.failed)
            told = f"{over}/{self.total} runs; {ending} {run}"
            print(f"{told}: {note}" if note else told, file=sys.stderr, flush=True)

    def check(self) -> None:
        """A DertsError unless all is done."""
        if self.stopped:
            kept = "finished runs and checkpoints are kept, run the same command to go on"
            raise InterruptedRunError(f"interrupted: {kept}")
        if self.failed:
            (run, reason), *_ = self.failed.items()
            count = f"{len(self.failed)} of {len(self.failed) + len(self.finished)}"
            raise DertsError(f"{count} runs failed; the first, {run}: {reason}")


def find_devices(words: Sequence[str]) -> list[str]:
    """The devices named; `auto` is every GPU, or the CPU where there is none.

    >>> find_devices(["cpu", "cpu"])
    ['cpu', 'cpu']
    """
    if not words:
        raise DertsError("--devices names none: give auto, or one device per worker")
    every = [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]
    named = [every if word == "auto" else [choose_device(word, "--devices")] for word in words]
    return [str(device) for devices in named for device in devices]


def run_grid(runs: Sequence[GridRun], devices: Sequence[str], quiet: bool = False) -> Endings:
    """Do all runs; a failure stops no other, Ctrl-C stops all at the next update."""
    endings = Endings(len(runs), quiet)
    with stop_requests() as stopping:
        if len(devices) > 1:
            _run_in_processes(runs, devices[: len(runs)], endings, stopping)
            return endings
        for run in runs:
            if stopping():
                endings.stopped = True
                break
            with progress(str(run), run.until, "updates", quiet=quiet) as advance:
                ended = do_run(run, devices[0], advance, stopping)
            endings.note(run, *ended)
    return endings


def _run_in_processes(
    runs: Sequence[GridRun], devices: Sequence[str], endings: Endings, stopping: Callable[[], bool]
) -> None:
    threads = max(1, torch.get_num_threads() // len(devices))

    def start() -> ProcessPoolExecutor:
        # one process, spawned, not forked: CUDA does not survive a fork
        return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin, (threads,))

    pools = [start() for _ in devices]
    waiting, idle = deque(runs), list(range(len(devices)))
    busy: dict[Future[tuple[Ending, str]], tuple[int, GridRun]] = {}
    told = False
    try:
        while busy or (waiting and not endings.stopped):
            if stopping() and not told:
                endings.stopped = told = True
                for process in multiprocessing.active_children():
                    process.terminate()  # SIGTERM: saves a checkpoint, then answers
            while idle and waiting and not endings.stopped:
                number, run = idle.pop(0), waiting.popleft()
                busy[pools[number].submit(_work, run, devices[number])] = number, run
            for answer in wait(busy, 0.5, FIRST_COMPLETED).done:
                number, run = busy.pop(answer)
                idle.append(number)
                try:
                    endings.note(run, *answer.result())
                except BrokenProcessPool:
                    reason = "its worker process died: is memory short?"
                    endings.note(run, "stopped" if endings.stopped else "failed", reason)
                    pools[number] = start()
    finally:
        for pool in pools:
            pool.shutdown(wait=not busy)


def _begin(threads: int) -> None:
    """Make a worker process ready; Ctrl-C in a terminal reaches it between runs, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_freed_memory()
    torch.set_num_threads(threads)


def _work(run: GridRun, device: str) -> tuple[Ending, str]:
    with stop_requests(PASSED_ON) as stopping:
        return do_run(run, device, stopping=stopping)


def run_on_ray(runs: Sequence[GridRun], quiet: bool = False) -> Endings:
    """Do all runs on the cluster that RAY_ADDRESS names, or that this machine belongs to."""
    ray, endings = _connect(), Endings(len(runs), quiet)
    gpus = 1 if ray.cluster_resources().get("GPU", 0) else 0
    job = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=TRIES - 1)(train_on_node)
    with stop_requests() as stopping:
        waiting = {job.remote(absolute(run)): run for run in runs}
        while waiting and not stopping():
            for answer in ray.wait(list(waiting), timeout=1.0)[0]:
                run = waiting.pop(answer)
                try:
                    ending, note, files = ray.get(answer)
                    write_files(run.folder, files)
                except ray.exceptions.RayError:
                    ending, note = "failed", f"its node or process was lost {TRIES} times"
                endings.note(run, ending, note)
        endings.stopped = endings.stopped or bool(waiting)
        for answer in waiting:
            ray.cancel(answer, force=True)
    return endings


def train_on_node(run: GridRun) -> tuple[Ending, str, dict[str, bytes]]:
    """Train a run in its folder; with its files, as the node may have a file system of its own."""
    ending, note = do_run(run)
    files = [path for path in run.folder.rglob("*") if path.is_file()]
    return ending, note, {str(path.relative_to(run.folder)): path.read_bytes() for path in files}


def _connect() -> Any:
    try:
        import ray

        if not ray.is_initialized():
            ray.init(address="auto", log_to_driver=False)
    except ImportError:
        raise DertsError("--on ray needs Ray: pip install 'derts[ray]'") from None
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        fix = "start one (ray start --head), or name one by RAY_ADDRESS"
        raise DertsError(f"no Ray cluster answers ({reason}): {fix}") from None
    return ray


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """What a node sent; the results last, as they say that a run is whole."""
    for name, content in sorted(files.items(), key=lambda item: item[0].startswith("result")):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)


def absolute(run: GridRun) -> GridRun:
    """The same run with paths that mean the same in another process's folder."""
    data = run.config.data if run.config.data == "glyphs" else str(Path(run.config.data).resolve())
    config, folder = replace(run.config, data=data), run.folder.resolve()
    return replace(run, config=config, folder=folder, warmup=run.warmup.resolve())
