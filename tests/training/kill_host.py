"""Trains in forked children that are killed on command; run by test_kill.py (as a module).

Forking after the imports makes a start cost milliseconds, so that a run can be killed many times.
Arguments: run folder, number of kills, seed. Writes what happened to standard output as JSON.
"""

import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

import derts.selection.derts
from derts.data import ImageTable, glyphs
from derts.errors import DertsError
from derts.training import resume, train
from tests.tiny import tiny

CONFIG = tiny(
    tasks={"noise": "tasks"},
    strategy={"name": "derts", "warmup": 3, "pool": 40},
    updates=120,
    validate_every=8,
    checkpoint_every=3,
)

ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


def die_in_a_checkpoint() -> None:
    """The process is killed when half of a checkpoint is in its temporary file."""
    whole = os.fsync

    def fsync(handle: int) -> None:
        name = os.readlink(f"/proc/self/fd/{handle}")
        if ".ckpt." in name:
            os.ftruncate(handle, os.fstat(handle).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        whole(handle)

    os.fsync = fsync  # type: ignore[assignment]


def die_in_a_selection() -> None:
    """The process is killed when a round's estimates are there but its choice is not."""

    def noisy_tasks(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(derts.selection.derts, "noisy_tasks", noisy_tasks)  # noqa: B010


def child(folder: Path, tables: dict[str, ImageTable], plan: str) -> int:
    """Train or resume in a fork; its process id."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        if plan == "checkpoint":
            die_in_a_checkpoint()
        elif plan == "selection":
            die_in_a_selection()
        if (folder / "config.toml").exists():
            resume(folder, tables=tables, quiet=True)
        else:
            train(CONFIG, folder, tables=tables, quiet=True)
        code = 0
    except DertsError as error:
        print(error, file=sys.stderr)
    finally:
        os._exit(code)


def newest(folder: Path) -> int:
    """The update of the newest checkpoint, 0 where there is none."""
    found = (folder / "checkpoints").glob("[!.]*.ckpt")
    return max((int(path.stem[7:]) for path in found), default=0)


def main(folder: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    tables = glyphs(characters=60, images_per_character=12)
    random_source = random.Random(seed)
    train(replace(CONFIG, updates=1), tables=tables, quiet=True)  # loads all that loads late
    whole = child(folder.with_name("whole"), tables, "none")
    assert os.waitpid(whole, 0)[1] == 0
    plans = ["checkpoint", "selection", *["moment"] * (kills - 2)]
    random_source.shuffle(plans)
    killed = []
    for plan in plans:
        process = child(folder, tables, plan)
        if plan == "moment":
            goal = newest(folder) + random_source.randrange(CONFIG.updates // kills)
            while newest(folder) < goal and not os.waitid(os.P_PID, process, ENDED):
                time.sleep(0.001)
            time.sleep(random_source.uniform(0, 0.05))
            os.kill(process, signal.SIGKILL)
        status = os.waitpid(process, 0)[1]
        assert os.WIFSIGNALED(status) or status == 0, f"{plan}: status {status}"
        torn = len(list((folder / "checkpoints").glob(".*.tmp")))
        killed.append([plan, os.WIFSIGNALED(status), newest(folder), torn])
        if status == 0:
            break
    else:
        assert os.waitpid(child(folder, tables, "none"), 0)[1] == 0
    print(json.dumps(killed))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
