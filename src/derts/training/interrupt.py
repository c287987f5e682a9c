"""Ctrl-C and SIGTERM end training between two updates, so that what is saved is whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Inside the block a first Ctrl-C or SIGTERM is only noted; a second one interrupts at once.

    Yields a function that says whether one was noted. Outside the main thread, where signals
    cannot be caught, nothing changes.

    >>> with stop_requests() as stopping:
    ...     stopping()
    False
    """
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(noted)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
