"""Options as dataclasses through tyro; a mistake is one line."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Sequence
from typing import TypeVar

import tyro

from derts.errors import DertsError

Options = TypeVar("Options")


def parse(
    kind: type[Options],
    arguments: Sequence[str],
    command: str,
    description: str,
    default: Options | None = None,
) -> Options:
    """Parse a command's arguments into its options dataclass."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            found = tyro.cli(
                kind,
                prog=f"derts {command}",
                description=description,
                args=list(arguments),
                default=default,
            )
        assert isinstance(found, kind)
        return found
    except SystemExit as stop:
        if not stop.code:
            raise
        raise DertsError(f"{_reason(said.getvalue())} (derts {command} --help)") from None


def _reason(box: str) -> str:
    """The first sentences of tyro's error box, without its frame."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [line.strip("│|╭╮╰╯+─- ") for line in plain.splitlines()]
    useful = []
    for line in [line for line in lines if line][1:]:  # the first line is the box's title
        if "full helptext" in line or line.startswith("Argument helptext"):
            break
        useful.append(line)
    return " ".join(useful[:3]) or "these options are not understood"


def print_rows(rows: Sequence[tuple[str, str]]) -> None:
    """Aligned `name  value` lines on standard output."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}", file=sys.stdout)


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """A heading and rows in aligned columns on standard output."""
    print(table_text(rows))


def table_text(rows: Sequence[tuple[str, ...]]) -> str:
    """A heading and rows in aligned columns, the first column to the left.

    >>> print(table_text([("name", "value"), ("a", "1.5")]))
    name  value
    ────  ─────
    a       1.5
    """
    lines = []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [f"{row[0]:<{widths[0]}}"]
        cells += [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
        if number == 0:
            lines.append("  ".join("─" * width for width in widths))
    return "\n".join(lines)
