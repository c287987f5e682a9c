"""How far the grid is: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from derts.paper.job import Job
from derts.progress import clock_text

if TYPE_CHECKING:
    from rich.table import Table

RECENT = 8


@dataclass
class Line:
    """A run as the board shows it."""

    job: Job
    state: str = "waiting"
    update: int = 0
    first: int = 0
    note: str = ""
    started: float = 0.0
    ended: float = 0.0

    @property
    def left(self) -> int:
        """Updates still to be made."""
        return max(0, self.job.until - self.update)


@dataclass
class Board:
    """Hears what happens to the runs."""

    jobs: Sequence[Job]
    stream: TextIO | None
    lines: dict[Job, Line] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.lines = {job: Line(job) for job in self.jobs}

    def started(self, job: Job, where: str) -> None:
        line = self.lines[job]
        line.state, line.note, line.started = "running", where, time.monotonic()

    def advanced(self, job: Job, count: int, note: str | None) -> None:
        line = self.lines[job]
        line.first = count if note is None and not line.update else line.first
        line.update += count
        line.note = note or line.note

    def ended(self, job: Job, state: str, note: str) -> None:
        line = self.lines[job]
        line.state, line.note, line.ended = state, note, time.monotonic()
        if state == "finished":
            line.update = job.until
        if self.stream is not None:
            taken = clock_text(line.ended - line.started)
            said = f": {note}" if note else ""
            text = f"{self.summary()}; {state} {job}, {line.update} updates in {taken}{said}"
            print(text, file=self.stream, flush=True)

    def waits_again(self, job: Job, why: str) -> None:
        """A run goes back to the queue."""
        self.lines[job] = Line(job, note=why)
        if self.stream is not None:
            print(f"{self.summary()}; again {job}: {why}", file=self.stream, flush=True)

    def summary(self) -> str:
        """Runs done, and the time that the rest should take."""
        lines = list(self.lines.values())
        over = sum(line.state in ("finished", "failed", "stopped") for line in lines)
        made = sum(line.update - line.first for line in lines)
        left = sum(line.left for line in lines if line.state in ("waiting", "running"))
        elapsed = time.monotonic() - self.began
        rest = f", {clock_text(elapsed / made * left)} left" if made and left else ""
        return f"{over}/{len(lines)} runs{rest}"

    def table(self) -> Table:
        """Running and lately ended runs, as a rich table."""
        from rich.table import Table
        from rich.text import Text

        styles = {"finished": "green", "failed": "red", "running": "cyan"}
        table = Table(title=self.summary(), title_justify="left", expand=True)
        table.add_column("run", overflow="fold")
        for name in ("state", "updates", "time", ""):
            table.add_column(name, no_wrap=True)
        lines = list(self.lines.values())
        ended = sorted((line for line in lines if line.ended), key=lambda line: line.ended)
        running = [line for line in lines if line.state == "running"]
        for line in (*ended[-RECENT:], *running):
            taken = clock_text((line.ended or time.monotonic()) - line.started)
            table.add_row(
                Text(str(line.job)),
                Text(line.state, styles.get(line.state, "")),
                f"{line.update}/{line.job.until}",
                taken,
                Text(line.note),
            )
        return table


@contextmanager
def board(jobs: Sequence[Job], quiet: bool, stream: TextIO | None = None) -> Iterator[Board]:
    """A board on standard error, live where that is a terminal."""
    stream = sys.stderr if stream is None else stream
    if quiet or not stream.isatty():
        yield Board(jobs, None if quiet else stream)
        return
    from rich.console import Console
    from rich.live import Live

    shown = Board(jobs, None)
    with Live(
        get_renderable=shown.table, console=Console(file=stream), refresh_per_second=2
    ) as live:
        yield shown
        live.refresh()
