"""How far a long job is: a bar on a terminal, a plain line now and then elsewhere."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO


class Advance(Protocol):
    """Tells the progress display that `count` more units are done; `note` is shown beside them.

    `before`: they were done before the display began, and do not count in its rate.
    """

    def __call__(
        self, count: int = 1, note: str | None = None, *, before: bool = False
    ) -> None: ...


def unheard(count: int = 1, note: str | None = None, *, before: bool = False) -> None:
    """An Advance that tells nobody."""


class Progress(Protocol):
    """Anything with the signature of `progress`; `silent` is one."""

    def __call__(
        self, title: str, total: int, unit: str = "steps"
    ) -> AbstractContextManager[Advance]: ...


def progress(
    title: str,
    total: int,
    unit: str = "steps",
    *,
    quiet: bool = False,
    stream: TextIO | None = None,
) -> AbstractContextManager[Advance]:
    """Show how far a job is, with its rate and the time left, on `stream` (standard error).

    >>> import sys
    >>> with progress("counting", total=20, unit="sheep", stream=sys.stdout) as advance:
    ...     for _ in range(2):
    ...         advance(10, note="asleep")
    counting: 10/20 sheep, ... sheep/s, 0:00 left, asleep
    counting: 20/20 sheep, ... sheep/s, 0:00 taken, asleep
    """
    stream = stream or sys.stderr
    if quiet:
        return silent(title, total, unit)
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return (_bar if stream.isatty() and not plain else _lines)(title, total, unit, stream)


@contextmanager
def silent(title: str, total: int, unit: str = "steps") -> Iterator[Advance]:
    """A Progress that shows nothing."""
    yield unheard


@contextmanager
def _bar(title: str, total: int, unit: str, stream: TextIO) -> Iterator[Advance]:
    # imported here: rich costs a tenth of a second, and worker processes never need it
    from rich import progress as bars
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column

    # where the line is too narrow for all, the bar gives way, then the note wraps: never a number
    columns = (
        bars.TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        bars.BarColumn(bar_width=None, table_column=Column(ratio=1)),
        bars.MofNCompleteColumn(table_column=Column(no_wrap=True)),
        bars.TextColumn("{task.fields[rate]}", table_column=Column(no_wrap=True)),
        bars.TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
        bars.TextColumn("{task.fields[note]}", table_column=Column()),
    )
    with bars.Progress(*columns, console=Console(file=stream), expand=True) as display:
        task = display.add_task(escape(title), total=total, rate="", note="")
        done, speed = 0, _Speed()

        def advance(count: int = 1, note: str | None = None, *, before: bool = False) -> None:
            nonlocal done
            done += count
            speed.before += count * before
            rate = f"{_rate(speed.of(done, time.monotonic()))}/s"
            fields = {"rate": rate} if note is None else {"rate": rate, "note": escape(note)}
            display.update(task, advance=count, **fields)  # type: ignore[arg-type]

        yield advance


@contextmanager
def _lines(title: str, total: int, unit: str, stream: TextIO) -> Iterator[Advance]:
    """A line when a tenth more is done or ten seconds have passed, but not twice a second."""
    started = last_time = time.monotonic()
    done = last_done = 0
    beside, speed = "", _Speed()

    def show(now: float, final: bool = False) -> None:
        nonlocal last_time, last_done
        last_time, last_done, rate = now, done, speed.of(done, now)
        left = f"{clock_text((total - done) / max(rate, 1e-9))} left"
        clock = f"{clock_text(now - started)} taken" if final else left
        parts = [f"{done:,}/{total:,} {unit}", f"{_rate(rate)} {unit}/s", clock, beside]
        print(f"{title}: {', '.join(filter(None, parts))}", file=stream, flush=True)

    def advance(count: int = 1, note: str | None = None, *, before: bool = False) -> None:
        nonlocal done, beside, last_done
        done, beside, now = done + count, beside if note is None else note, time.monotonic()
        if before:
            last_done, speed.before = done, speed.before + count
        tenth, soon = done - last_done >= total / 10, last_done > 0 and now - last_time < 0.5
        if 0 < done != total and (now - last_time >= 10 or (tenth and not soon)):
            show(now)

    yield advance
    if done > last_done:
        show(time.monotonic(), final=True)


class _Speed:
    """Units per second, of which `before` were done before."""

    def __init__(self) -> None:
        self.begun, self.before = time.monotonic(), 0

    def of(self, done: int, now: float) -> float:
        return (done - self.before) / max(now - self.begun, 1e-9)


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}"


def clock_text(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss.

    >>> clock_text(75), clock_text(3675)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
