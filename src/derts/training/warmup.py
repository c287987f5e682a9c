"""The end of a warm-up, shared by runs that differ in nothing but the strategy."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from derts.errors import DertsError
from derts.files import write_atomically
from derts.training.checkpoint import newest_checkpoint, save_checkpoint, say

State = dict[str, Any]
Events = list[dict[str, Any]]


class SharedWarmup:
    """A Trainer's state and a run's events after its warm-up: in a folder, or in memory.

    >>> shared = SharedWarmup()
    >>> shared.load() is None
    True
    >>> shared.save({"update": 5}, [])
    >>> shared.load()
    ({'update': 5}, [])
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._held: tuple[State, Events] | None = None

    def load(self) -> tuple[State, Events] | None:
        """What was left here, if it is whole."""
        if self.folder is None:
            return copy.deepcopy(self._held)
        try:
            found = newest_checkpoint(self.folder)
        except DertsError as error:
            say(f"{str(error).rpartition(',')[0]}: the warm-up is done again")
            return None
        if found is None:
            return None
        lines = (self.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
        return found[1], [json.loads(line) for line in lines]

    def save(self, state: State, events: Events) -> None:
        """Leave the end of a warm-up for others."""
        if self.folder is None:
            self._held = copy.deepcopy((state, events))
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(event) + "\n" for event in events)
        write_atomically(self.folder / "events.jsonl", lines.encode())
        save_checkpoint(self.folder, state["update"], state)
