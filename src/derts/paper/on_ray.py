"""Runs of the grid on an existing Ray cluster; Ray repeats those of a node that is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from derts.errors import DertsError
from derts.files import LOCK, write_atomically
from derts.paper.grid import Ending, Endings, do_run
from derts.paper.runs import GridRun
from derts.training.run import stop_requests

TRIES = 4  # of a run whose node or process is lost


def run_on_ray(runs: Sequence[GridRun], quiet: bool = False) -> Endings:
    """Do all runs on the cluster that RAY_ADDRESS names, or that this machine belongs to."""
    ray, endings = _connect(), Endings(len(runs), quiet)
    gpus = 1 if ray.cluster_resources().get("GPU", 0) else 0
    job = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=TRIES - 1)(train_on_node)
    with stop_requests() as stopping:
        waiting = {job.remote(absolute(run), _owner(run)): run for run in runs}
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


def train_on_node(run: GridRun, owner: str) -> tuple[Ending, str, dict[str, bytes]]:
    """Train a run in its folder; with its files where the driver does not see this file system."""
    shared = bool(owner) and _owner(run) == owner
    ending, note = do_run(run)
    files = [path for path in run.folder.rglob("*") if path.is_file() and not shared]
    return ending, note, {str(path.relative_to(run.folder)): path.read_bytes() for path in files}


def _owner(run: GridRun) -> str:
    """The process that holds the folder of all runs, as this machine sees it."""
    lock = run.folder.parents[1] / LOCK
    return lock.read_text(encoding="utf-8") if lock.is_file() else ""


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
