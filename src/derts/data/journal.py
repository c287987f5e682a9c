"""The finished chunks of an unfinished store, so that a second call can go on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from derts.data.worker import Done


@dataclass
class Journal:
    """The finished chunks of an unfinished store, one JSON line each after the fingerprint."""

    path: Path
    finished: dict[tuple[str, int], Done] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, fingerprint: str) -> Journal | None:
        """The journal of the same work, or None if there is none."""
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError):
            return None
        journal = cls(path)
        if lines[0] != fingerprint:
            return None
        for line in lines[1:-1]:  # what follows the last newline was cut short
            try:
                split, start, count, broken = json.loads(line)
                entries = tuple((index, name, reason) for index, name, reason in broken)
                journal.finished[split, start] = Done(split, start, count, entries)
            except ValueError:
                return None
        path.write_text("\n".join([*lines[:-1], ""]), encoding="utf-8")
        return journal

    def add(self, done: Done) -> None:
        self.finished[done.split, done.start] = done
        with self.path.open("a", encoding="utf-8") as file:
            line = json.dumps([done.split, done.start, done.count, done.broken])
            file.write(line + "\n")
