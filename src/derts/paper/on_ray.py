"""Runs of the grid on an existing Ray cluster; runs of a node that is lost finish elsewhere."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from derts.errors import DertsError
from derts.files import write_atomically
from derts.memory import keep_freed_memory
from derts.paper.board import Board
from derts.paper.grid import Endings
from derts.paper.job import Job, point_file
from derts.paper.running import Ending, Worker
from derts.training.run import stop_requests

TRIES = 4  # of a run whose node or process is lost
PATIENCE = 600  # seconds to wait for a worker when there is none at all


class Remote:
    """What runs on a node: one worker, on the GPU that Ray gave it or on the CPU."""

    def __init__(self) -> None:
        keep_freed_memory()
        self.worker = Worker("auto")

    def node(self) -> str:
        """Says that the worker is there, and where."""
        import platform

        return platform.node()

    def run(self, job: Job) -> tuple[Ending, str]:
        """Do a job in its folder, here or on a file system that all nodes share."""

        def advance(count: int = 1, note: str | None = None) -> None:
            pass

        return self.worker.run(job, advance, lambda: False)

    def files(self, folder: Path) -> dict[str, bytes]:
        """A run folder's files, for a driver that does not see this file system."""
        found = [path for path in folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@dataclass
class Cluster:
    """Workers of a cluster: starting, idle or busy."""

    ray: Any
    make: Callable[[], Any]
    starting: dict[Any, Any] = field(default_factory=dict)
    idle: list[tuple[Any, str]] = field(default_factory=list)
    busy: dict[Any, tuple[Any, str, Job]] = field(default_factory=dict)

    def add(self) -> None:
        """Ask for one more worker; it is used once it has answered."""
        actor = self.make()
        self.starting[actor.node.remote()] = actor

    def submit(self, job: Job) -> str:
        """Give a job to an idle worker; where that is."""
        actor, node = self.idle.pop()
        self.busy[actor.run.remote(job)] = actor, node, job
        return node

    def ready(self, seconds: float) -> list[Any]:
        """Answers that have come, of workers and of jobs."""
        waiting = [*self.starting, *self.busy]
        found: list[Any] = self.ray.wait(waiting, num_returns=len(waiting), timeout=seconds)[0]
        return found

    def kill(self) -> None:
        """End all workers."""
        everyone = [actor for actor, *_ in (*self.idle, *self.busy.values())]
        for actor in (*everyone, *self.starting.values()):
            self.ray.kill(actor)


def run_on_ray(jobs: Sequence[Job], board: Board) -> Endings:
    """Do all jobs on the cluster that RAY_ADDRESS names, or that this machine belongs to."""
    ray = _connect()
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0))
    workers = min(len(jobs), gpus or int(resources.get("CPU", 1)))
    kind = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0)(Remote)
    cluster = Cluster(ray, kind.remote)
    for _ in range(workers):
        cluster.add()
    try:
        with stop_requests() as stopping:
            return _drive(cluster, jobs, board, stopping)
    finally:
        cluster.kill()


def _connect() -> Any:
    try:
        import ray
    except ImportError:
        raise DertsError("--on ray needs Ray: pip install 'derts[ray]'") from None
    if not ray.is_initialized():
        try:
            ray.init(address="auto", log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise DertsError(
                f"no Ray cluster answers ({reason}): start one (ray start --head), or name one "
                "by RAY_ADDRESS"
            ) from None
    return ray


def _drive(
    cluster: Cluster, jobs: Sequence[Job], board: Board, stopping: Callable[[], bool]
) -> Endings:
    ours = {absolute(job): job for job in jobs}
    waiting, endings = deque(ours), Endings()
    tries: Counter[Job] = Counter()
    last_sign = time.monotonic()
    while waiting or cluster.busy:
        if stopping():
            endings.stopped = True
            return endings
        while cluster.idle and waiting:
            job = waiting.popleft()
            board.started(ours[job], cluster.submit(job))
        for answer in cluster.ready(1.0):
            lost = _hear(cluster, answer, ours, board, endings)
            if lost is not None:
                tries[lost] += 1
                if tries[lost] < TRIES:
                    waiting.appendleft(lost)
                    board.waits_again(ours[lost], "its node or process was lost")
                else:
                    reason = f"its node or process was lost {TRIES} times"
                    endings.note(ours[lost], "failed", reason, board)
        if cluster.busy or cluster.idle:
            last_sign = time.monotonic()
        elif time.monotonic() - last_sign > PATIENCE:
            raise DertsError(
                f"no node of the Ray cluster has offered a worker for {PATIENCE} seconds: look at "
                "ray status; finished runs are kept, run the same command to go on"
            )
    return endings


def _hear(
    cluster: Cluster, answer: Any, ours: dict[Job, Job], board: Board, endings: Endings
) -> Job | None:
    """Take one answer; the job that it shows to be lost, if any."""
    errors = cluster.ray.exceptions.RayError
    if answer in cluster.starting:
        actor = cluster.starting.pop(answer)
        try:
            cluster.idle.append((actor, cluster.ray.get(answer)))
        except errors:
            cluster.add()
        return None
    actor, node, job = cluster.busy.pop(answer)
    try:
        ending, note = cluster.ray.get(answer)
        if ending == "finished" and not point_file(job.folder, job.until).exists():
            write_files(job.folder, cluster.ray.get(actor.files.remote(job.folder)))
    except errors:
        cluster.add()
        return job
    cluster.idle.append((actor, node))
    endings.note(ours[job], ending, note, board)
    return None


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """What `Remote.files` read; the results last, as they say that a run is whole."""
    for name, content in sorted(files.items(), key=lambda item: item[0].startswith("result")):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)


def absolute(job: Job) -> Job:
    """The same job with paths that mean the same in another process's folder."""
    data = job.config.data
    if data != "glyphs":
        data = str(Path(data).resolve())
    return replace(
        job,
        config=replace(job.config, data=data),
        folder=job.folder.resolve(),
        warmup=job.warmup.resolve(),
    )
