"""Every file that derts reads, changed in its own structure, 10,000 times.

    python benchmarks/soak_fuzz.py results/soak-fuzz-cpu.json

A case changes one file: a value of its JSON, TOML, CSV, array header, tensors or pickle becomes
nested, huge, not finite, of another type or of another length, or its bytes are damaged. A command
that reads it must then succeed or say one printable line with exit code 2, within SECONDS and
MEMORY. Case n is the same every time: `--first n --cases 1` runs it again.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from unittest.mock import patch

import numpy as np
import torch
import tyro
from soak_changes import damaged
from soak_files import KINDS, NEEDED, SMALL, make_world
from timing import write_with_code

from derts import cli
from derts.commands import labels as label_commands
from derts.config_file import read_config
from derts.data import describe_store, item_names, open_data, open_store, read_matrix
from derts.facility_location import Selection
from derts.labels import relabel_by_votes
from derts.labels.cleaning import read_review
from derts.labels.judging import JudgedItems, judge_items
from derts.labels.known_errors import true_labels
from derts.model_files import load_model
from derts.models.pretrained import _fill
from derts.paper.collect import load_results
from derts.paper.figures import draw_curves, load_curves
from derts.report.read import (
    RunHistory,
    comparison_table,
    finished_results,
    group_runs,
    settings_table,
)
from derts.selection.round_record import RoundRecord
from derts.tasks import TaskPool
from derts.training.checkpoint import load_checkpoint
from derts.training.run import open_trainer
from derts.training.run_folder import Run

SECONDS, MEMORY = 120, 8 * 2**30
COMMAND_SHARE = 0.05  # of the cases in which a whole command runs, where a function does


class TooSlowError(BaseException):
    """A case took longer than SECONDS; nothing may catch it."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlowError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def newest(pattern: str) -> Path:
    return sorted(Path().glob(pattern))[-1]


def read_run() -> None:
    history = RunHistory(Run.open("run"))
    groups = group_runs([history])
    comparison_table(finished_results(groups))
    settings_table(groups)
    assert history.status


def read_store() -> None:
    describe_store("store").lines()
    open_store("store")


def draw_known_curves() -> None:
    if found := load_curves(Path("curves.json")):  # draw_pictures says that there are none
        draw_curves(found, Path("curves.png"))


@cache
def judged(world: Path) -> JudgedItems:
    """The world's images, judged once: reading a review needs to know them."""
    tables = open_data(str(world / "store"))
    return judge_items(open_trainer(world / "run", tables).learner, tables, str(world / "store"))


WORLD: list[Path] = []
CALLS: dict[str, Callable[[], object]] = {
    "config": lambda: read_config("run/config.toml").resolved(),
    "given config": lambda: read_config("given.toml").resolved(),
    "events": read_run,
    "result": read_run,
    "run's data": lambda: Run.open("run").data(),
    "checkpoint": lambda: load_checkpoint(newest("run/checkpoints/*.ckpt")),
    "round": lambda: RoundRecord.load(newest("run/rounds/*.safetensors")),
    "store": read_store,
    "store's images": read_store,
    "store's labels": read_store,
    "store's names": lambda: item_names("store", "train"),
    "true labels": lambda: true_labels("store", judged(WORLD[0]).tables["train"]),
    "model": lambda: load_model("model.safetensors"),
    "selection": lambda: list(Selection.load("selection.json").batches(torch.arange(12), 2)),
    "pool": lambda: relabel_by_votes(TaskPool.load("pool.safetensors")),
    "features": lambda: read_matrix("rows.npz").check(),
    "features' array": lambda: read_matrix("rows/x.npy").check(),
    "features' labels": lambda: read_matrix("rows/x.npy").check(),
    "weights": lambda: _fill(SMALL(), "small", "w.safetensors", "head"),
    "state dict": lambda: _fill(SMALL(), "small", "w.pth", "head"),
    "review": lambda: read_review(Path("review.csv"), judged(WORLD[0])),
    "results": lambda: load_results(Path("known/reproduce-table1.json")),
    "curves": draw_known_curves,
}
"""The function that reads a file; commands take longer."""


def answer(words: str) -> tuple[int, str, str]:
    """A command's exit code, output and errors; of a library call, as the command line would."""
    said, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told), limited():
        if words in CALLS:
            with contextlib.ExitStack() as stack:
                stack.callback(setattr, cli, "dispatch", cli.dispatch)
                cli.dispatch = lambda _: (CALLS[words](), 0)[1]  # type: ignore[assignment]
                code = cli.run([])
        else:
            code = cli.run(words.split())
    return code, said.getvalue(), told.getvalue()


def wrong(code: int, said: str, told: str) -> str:
    """What a command's answer lacks; nothing where it is as promised."""
    lines = [line for line in told.splitlines() if ": going on from the one before" not in line]
    titles = ("preparing: ", "training: ", "verifying: ", "inspecting: ", "checking: ")
    lines = [line for line in lines if not line.startswith(titles)]
    bad = [line for line in (*said.split("\n"), *told.split("\n")) if not line.isprintable()]
    if bad:
        return f"not printable: {bad[0]!r}"
    if code == 2 and (len(lines) != 1 or not lines[0].startswith("derts: ")):
        return f"not one line: {lines}"
    return "" if code in (0, 2) else f"exit code {code}"


def try_case(number: int, world: Path) -> tuple[str, str, str]:
    """The kind of a case, how it ended, and the failure where it is one."""
    random = np.random.default_rng([number, 20])
    kind = list(KINDS)[number % len(KINDS)]
    pattern, change, commands = KINDS[kind]
    words = commands[random.integers(len(commands))]
    if kind in CALLS and random.random() > COMMAND_SHARE:
        words = kind
    with TemporaryDirectory() as folder:
        place = Path(folder) / "case"
        place.mkdir()
        needed = {pattern.split("/")[0], *(("store",) if words in CALLS else NEEDED)}
        for name in needed:
            one = world / name
            (shutil.copytree if one.is_dir() else shutil.copy)(one, place / name)
        files = sorted(place.glob(pattern))
        if not files:
            return kind, "no such file", ""
        file = files[random.integers(len(files))]
        whole = file.read_bytes()
        content = damaged(random, whole)
        if random.random() < 0.8:
            with contextlib.suppress(Exception):  # a value that the format cannot hold
                content = change(random, whole)
        file.write_bytes(content)
        before = os.getcwd()
        os.chdir(place)
        try:
            with contextlib.nullcontext() if random.random() < 0.1 else no_drawing():
                code, said, told = answer(words)
            cause = wrong(code, said, told)
        except SystemExit as stop:
            code, cause = 0, f"SystemExit {stop.code}" if stop.code else ""
        except TooSlowError:
            code, cause = 1, f"longer than {SECONDS} s"
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            where = traceback.extract_tb(error.__traceback__)[-1]
            trace = "".join(traceback.format_exception(error)[-6:]).strip()[-1500:]
            code, cause = 1, f"{type(error).__name__}: {error} at {where.name}\n{trace}"
        finally:
            os.chdir(before)
    failure = f"case {number} ({kind}: {words}): {cause}" if cause else ""
    return kind, "failed" if cause else "refused" if code == 2 else "taken", failure


@contextlib.contextmanager
def no_drawing() -> Iterator[None]:
    """Without matplotlib, which takes longer than all else of a command."""
    with (
        patch("derts.report.page.draw_figures", lambda groups: {}),
        patch("derts.report.pictures.draw_sheet", lambda *_: None),
        patch("derts.paper.figures.save_figure", lambda *_, **__: None),
        patch("derts.diagnosis.draw_diagnosis", lambda *_: None),
    ):
        yield


def check_commands(world: Path) -> None:
    """Every command must do its work on files that are as they should be."""
    for words in dict.fromkeys(words for *_, commands in KINDS.values() for words in commands):
        with (
            TemporaryDirectory() as folder,
            contextlib.chdir(shutil.copytree(world, Path(folder, "c"))),
        ):
            if words.startswith("train --resume"):
                Path("run/result.json").unlink()
            started = time.monotonic()
            code, _, told = answer(words)
            print(f"{time.monotonic() - started:.2f} s  {words[:70]}", file=sys.stderr)
            assert code == 0, (words, told)


def main(out: tyro.conf.Positional[Path], cases: int = 10_000, first: int = 0) -> None:
    """Change so many files, beginning with case `first`."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    failures: list[str] = []
    started = time.monotonic()
    label_commands.FIRST = 2
    with TemporaryDirectory() as folder:
        world = Path(folder) / "world"
        world.mkdir()
        make_world(world)
        check_commands(world)
        WORLD.append(world)
        judged(world)
        for number in range(first, first + cases):
            try:
                kind, ending, failure = try_case(number, world)
            except KeyboardInterrupt:
                break  # what was tried so far is written
            counts[kind][ending] += 1
            if failure:
                failures.append(failure[:600])
                print(failure, file=sys.stderr, flush=True)
            if number % 500 == 499:
                told = f"{number + 1} cases, {len(failures)} failures"
                print(f"{told}, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    write_with_code(
        out,
        cases=sum(found.total() for found in counts.values()),
        first=first,
        kinds={kind: dict(found) for kind, found in counts.items()},
        failures=failures,
        seconds=round(time.monotonic() - started),
    )
    assert not failures, f"{len(failures)} cases failed"


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
