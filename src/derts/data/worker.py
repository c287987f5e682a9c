"""What a worker process does: decode a range of images straight into the store's file.

Worker processes import this module, so it must not import torch.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import wait as wait_for_connection
from pathlib import Path

import numpy as np

from derts.data.decode import decode, strict_pillow
from derts.data.source import Images
from derts.errors import DertsError

# Of the images themselves these are honest; anything else wrong with one makes it broken.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True)
class Job:
    """Images start … of a split, to be written at `position` of `target`."""

    split: str
    start: int
    images: Images
    size: int
    channels: int
    target: Path
    position: int


@dataclass(frozen=True)
class Done:
    """A finished job: how many images, and (index, name, reason) of those that are broken."""

    split: str
    start: int
    count: int
    broken: tuple[tuple[int, str, str], ...]


def run_job(job: Job) -> Done:
    """Decode one job's images; broken ones are left black and reported."""
    pixels = np.zeros((len(job.images), job.size, job.size, job.channels), dtype=np.uint8)
    broken = []
    with strict_pillow():
        for index in range(len(job.images)):
            try:
                content = job.images.read(index)
                if len(content) == 0:
                    raise ValueError("empty file")
                pixels[index] = decode(content, job.size, job.channels)
            except Exception as error:
                if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
                    raise
                reason = _reason(error)
                broken.append((job.start + index, job.images.name(index), reason))
    with job.target.open("r+b") as file:
        file.seek(job.position)
        file.write(pixels.tobytes())
    return Done(job.split, job.start, len(job.images), tuple(broken))


def run_jobs(jobs: Iterable[Job], workers: int) -> Iterator[Done]:
    """Run jobs in several processes (in this one if workers is 1), in the order they finish.

    Leaving the iteration, by an error or Ctrl-C, ends the processes after the jobs in hand.
    """
    if workers == 1 or _main_is_no_file():
        yield from map(run_job, jobs)
        return
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([__name__])
    remaining = iter(jobs)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    try:
        running: set[Future[Done]] = {
            pool.submit(run_job, job) for job in islice(remaining, 2 * workers)
        }
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(run_job, job) for job in islice(remaining, len(finished))}
            for future in finished:
                yield future.result()
    except BrokenProcessPool as error:
        raise DertsError(
            "a worker process ended unexpectedly: in a script, call prepare under "
            'if __name__ == "__main__", or pass workers=1; if memory was short, use fewer workers'
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _main_is_no_file() -> bool:
    """A program read from standard input: Python 3.11 cannot start workers for it."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return main is not None and not os.path.exists(main)


def _start_worker() -> None:
    # Ctrl-C reaches the whole process group; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Without this, workers would wait for ever for a parent that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for_connection([parent.sentinel])
        os._exit(1)


def _reason(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    if "DecompressionBomb" in type(error).__name__:
        return "more pixels than Pillow deems safe"
    if "cannot identify" in text:
        return "not an image that Pillow knows"
    return text[:120]
