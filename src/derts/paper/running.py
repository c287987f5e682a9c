"""One run of the grid: begun or resumed, evaluated at its points, kept in its folder."""

from __future__ import annotations

import gc
import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

import torch

from derts.data import open_data
from derts.data.table import ImageTable
from derts.errors import DISK_FULL, DertsError
from derts.files import write_atomically
from derts.hardware import choose_device
from derts.paper.job import Job
from derts.progress import Advance
from derts.training.placement import place_table
from derts.training.run import train_in
from derts.training.run_folder import point_file
from derts.training.warmup import SharedWarmup

Tables = Mapping[str, ImageTable]
Ending = Literal["finished", "stopped", "failed"]


class Worker:
    """Runs jobs one after the other on one device; data stays there from job to job."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.tables: dict[str, Tables] = {}

    def run(self, job: Job, advance: Advance, stopping: Callable[[], bool]) -> tuple[Ending, str]:
        """Do a job; how it ended, with its accuracy or, where it failed, why.

        A failure that is not a plain mistake leaves error.txt behind.
        """
        hardware = replace(job.config.hardware, device=self.device)
        job = replace(job, config=replace(job.config, hardware=hardware))
        try:
            done = run_job(job, self._data(job), advance, stopping)
            return ("finished", _accuracy(job)) if done else ("stopped", "")
        except Exception as error:  # one job's failure is not the grid's
            lines = str(error).splitlines()
            reason = lines[0] if lines else type(error).__name__
            if isinstance(error, OSError) and error.errno in DISK_FULL:
                reason = f"the disk of {job.folder} is full: free some space, then run this again"
            elif not isinstance(error, DertsError):
                reason = f"{type(error).__name__}: {reason} (see {job.folder / 'error.txt'})"
                job.folder.mkdir(parents=True, exist_ok=True)
                write_atomically(job.folder / "error.txt", traceback.format_exc().encode())
            return "failed", reason
        finally:
            if torch.cuda.is_initialized():
                gc.collect()  # a trainer refers to itself: give back now what it holds of the GPU

    def _data(self, job: Job) -> Tables:
        name = job.config.data
        if name not in self.tables:
            device = choose_device(job.config.hardware)
            self.tables[name] = {
                split: place_table(table, device) for split, table in open_data(name).items()
            }
        return self.tables[name]


def _accuracy(job: Job) -> str:
    result = json.loads(point_file(job.folder, job.until).read_text(encoding="utf-8"))
    return f"accuracy {result['accuracy']:.2f}%"


def run_job(
    job: Job,
    tables: Tables,
    advance: Advance = lambda count=1, note=None: None,
    stopping: Callable[[], bool] = lambda: False,
) -> bool:
    """Train up to job.until, evaluating at the points on the way; False if stopped before."""
    result = train_in(
        job.folder,
        job.config,
        tables,
        until=job.until,
        points=job.points,
        warmup=SharedWarmup(job.warmup),
        advance=advance,
        stopping=stopping,
    )
    return result is not None
