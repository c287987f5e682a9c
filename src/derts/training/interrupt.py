"""Ctrl-C and SIGTERM end training between two updates, so that what is saved is whole."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_requests(apart: float = 0.0) -> Iterator[Callable[[], bool]]:
    """Inside the block a first Ctrl-C or SIGTERM is only noted; a second one interrupts at once.

    What comes within `apart` seconds of the first is the same request, as when a terminal and a
    launcher both pass it on.
    Yields a function that says whether one was noted. Outside the main thread, where signals
    cannot be caught, nothing changes.

    >>> with stop_requests() as stopping:
    ...     stopping()
    False
    """
    noted: list[float] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted and time.monotonic() >= noted[0] + apart:
            raise KeyboardInterrupt
        noted.append(time.monotonic())

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
