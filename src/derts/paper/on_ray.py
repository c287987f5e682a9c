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
from derts.paper.board import Board
from derts.paper.grid import Ending, Endings, GridWorker
from derts.paper.runs import GridRun, point_file
from derts.training.run import stop_requests

TRIES = 4  # of a run whose node or process is lost
PATIENCE = 600  # seconds to wait for a worker when there is none at all


class RemoteWorker:
    """What runs on a node: one worker, on the GPU that Ray gave it or on the CPU."""

    def __init__(self) -> None:
        self.worker = GridWorker("auto")

    def node(self) -> str:
        """Says that the worker is there, and where."""
        import platform

        return platform.node()

    def do(self, run: GridRun) -> tuple[Ending, str]:
        """Train a run in its folder, here or on a file system that all nodes share."""
        return self.worker.do(run, lambda count=1, note=None: None, lambda: False)

    def files(self, folder: Path) -> dict[str, bytes]:
        """A run folder's files, for a driver that does not see this file system."""
        found = [path for path in folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@dataclass
class RayCluster:
    """Workers of a cluster: starting, idle or busy."""

    ray: Any
    make: Callable[[], Any]
    starting: dict[Any, Any] = field(default_factory=dict)
    idle: list[tuple[Any, str]] = field(default_factory=list)
    busy: dict[Any, tuple[Any, str, GridRun]] = field(default_factory=dict)

    def add(self) -> None:
        """Ask for one more worker; it is used once it has answered."""
        actor = self.make()
        self.starting[actor.node.remote()] = actor

    def submit(self, run: GridRun) -> str:
        """Give a run to an idle worker; where that is."""
        actor, node = self.idle.pop()
        self.busy[actor.do.remote(run)] = actor, node, run
        return node

    def ready(self, seconds: float) -> list[Any]:
        """Answers that have come, of workers and of runs."""
        waiting = [*self.starting, *self.busy]
        found: list[Any] = self.ray.wait(waiting, num_returns=len(waiting), timeout=seconds)[0]
        return found

    def kill(self) -> None:
        """End all workers."""
        everyone = [actor for actor, *_ in (*self.idle, *self.busy.values())]
        for actor in (*everyone, *self.starting.values()):
            self.ray.kill(actor)


def run_on_ray(runs: Sequence[GridRun], board: Board) -> Endings:
    """Do all runs on the cluster that RAY_ADDRESS names, or that this machine belongs to."""
    ray = _connect()
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0))
    workers = min(len(runs), gpus or int(resources.get("CPU", 1)))
    kind = ray.remote(num_cpus=1, num_gpus=1 if gpus else 0)(RemoteWorker)
    cluster = RayCluster(ray, kind.remote)
    for _ in range(workers):
        cluster.add()
    try:
        with stop_requests() as stopping:
            return _drive(cluster, runs, board, stopping)
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
    cluster: RayCluster, runs: Sequence[GridRun], board: Board, stopping: Callable[[], bool]
) -> Endings:
    ours = {absolute(run): run for run in runs}
    waiting, endings = deque(ours), Endings()
    tries: Counter[GridRun] = Counter()
    last_sign = time.monotonic()
    while waiting or cluster.busy:
        if stopping():
            endings.stopped = True
            return endings
        while cluster.idle and waiting:
            run = waiting.popleft()
            board.started(ours[run], cluster.submit(run))
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
    cluster: RayCluster, answer: Any, ours: dict[GridRun, GridRun], board: Board, endings: Endings
) -> GridRun | None:
    """Take one answer; the run that it shows to be lost, if any."""
    errors = cluster.ray.exceptions.RayError
    if answer in cluster.starting:
        actor = cluster.starting.pop(answer)
        try:
            cluster.idle.append((actor, cluster.ray.get(answer)))
        except errors:
            cluster.add()
        return None
    actor, node, run = cluster.busy.pop(answer)
    try:
        ending, note = cluster.ray.get(answer)
        if ending == "finished" and not point_file(run.folder, run.until).exists():
            write_files(run.folder, cluster.ray.get(actor.files.remote(run.folder)))
    except errors:
        cluster.add()
        return run
    cluster.idle.append((actor, node))
    endings.note(ours[run], ending, note, board)
    return None


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """What `RemoteWorker.files` read; the results last, as they say that a run is whole."""
    for name, content in sorted(files.items(), key=lambda item: item[0].startswith("result")):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)


def absolute(run: GridRun) -> GridRun:
    """The same run with paths that mean the same in another process's folder."""
    data = run.config.data
    if data != "glyphs":
        data = str(Path(data).resolve())
    return replace(
        run,
        config=replace(run.config, data=data),
        folder=run.folder.resolve(),
        warmup=run.warmup.resolve(),
    )
