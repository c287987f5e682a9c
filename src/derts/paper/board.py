"""How far the grid is: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from derts.paper.runs import GridRun
from derts.progress import clock_text

if TYPE_CHECKING:
    from rich.table import Table

RECENT = 8


@dataclass
class BoardLine:
    """A run as the board shows it; `first` updates were there before this command."""

    state: str = "waiting"
    update: int = 0
    first: int = 0
    note: str = ""
    started: float = 0.0
    ended: float = 0.0


@dataclass
class Board:
    """Hears what happens to the runs."""

    runs: Sequence[GridRun]
    stream: TextIO | None
    lines: dict[GridRun, BoardLine] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.lines = {run: BoardLine() for run in self.runs}

    def started(self, run: GridRun, where: str) -> None:
        self.lines[run] = BoardLine("running", note=where, started=time.monotonic())

    def advanced(self, run: GridRun, count: int, note: str | None) -> None:
        line = self.lines[run]
        line.first = count if note is None and not line.update else line.first
        line.update += count
        line.note = note or line.note

    def ended(self, run: GridRun, state: str, note: str) -> None:
        line = self.lines[run]
        line.state, line.note, line.ended = state, note, time.monotonic()
        line.update = run.until if state == "finished" else line.update
        taken = clock_text(line.ended - line.started)
        self._say(
            f"{state} {run}, {line.update} updates in {taken}" + (f": {note}" if note else "")
        )

    def waits_again(self, run: GridRun, why: str) -> None:
        """A run goes back to the queue."""
        self.lines[run] = BoardLine(note=why)
        self._say(f"again {run}: {why}")

    def _say(self, text: str) -> None:
        if self.stream is not None:
            print(f"{self.summary()}; {text}", file=self.stream, flush=True)

    def summary(self) -> str:
        """Runs done, and the time that the rest should take."""
        pairs = list(self.lines.items())
        over = sum(line.state in ("finished", "failed", "stopped") for _, line in pairs)
        made = sum(line.update - line.first for _, line in pairs)
        left = sum(
            max(0, run.until - line.update)
            for run, line in pairs
            if line.state in ("waiting", "running")
        )
        elapsed = time.monotonic() - self.began
        rest = f", {clock_text(elapsed / made * left)} left" if made and left else ""
        return f"{over}/{len(pairs)} runs{rest}"

    def table(self) -> Table:
        """Running and lately ended runs, as a rich table."""
        from rich.table import Table
        from rich.text import Text

        styles = {"finished": "green", "failed": "red", "running": "cyan"}
        table = Table(title=self.summary(), title_justify="left", expand=True)
        table.add_column("run", overflow="fold")
        for name in ("state", "updates", "time", ""):
            table.add_column(name, no_wrap=True)
        pairs = list(self.lines.items())
        ended = sorted((pair for pair in pairs if pair[1].ended), key=lambda pair: pair[1].ended)
        running = [pair for pair in pairs if pair[1].state == "running"]
        for run, line in (*ended[-RECENT:], *running):
            taken = clock_text((line.ended or time.monotonic()) - line.started)
            state = Text(line.state, styles.get(line.state, ""))
            table.add_row(
                Text(str(run)), state, f"{line.update}/{run.until}", taken, Text(line.note)
            )
        return table


@contextmanager
def board(runs: Sequence[GridRun], quiet: bool, stream: TextIO | None = None) -> Iterator[Board]:
    """A board on standard error, live where that is a terminal."""
    stream = sys.stderr if stream is None else stream
    if quiet or not stream.isatty():
        yield Board(runs, None if quiet else stream)
        return
    from rich.console import Console
    from rich.live import Live

    shown = Board(runs, None)
    console = Console(file=stream)
    with Live(get_renderable=shown.table, console=console, refresh_per_second=2) as live:
        yield shown
        live.refresh()
