"""Options as dataclasses through tyro; a mistake is one line."""

from __future__ import annotations

import contextlib
import csv
import io
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, TextIO, TypeVar

import tyro

from derts.errors import DertsError
from derts.report.tables import table_text

Options = TypeVar("Options")


def parse(
    kind: type[Options],
    arguments: Sequence[str],
    command: str,
    description: str,
    default: Options | None = None,
) -> Options:
    """Parse a command's arguments into its options dataclass."""
    said, asked = io.StringIO(), _Held(sys.stdout)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(asked):
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
            print(_wrapped(asked.getvalue(), shutil.get_terminal_size().columns), end="")
            raise
        raise DertsError(f"{_reason(said.getvalue())} (derts {command} --help)") from None


def unset(metavar: str) -> Any:
    """How the help shows an option that may be left out: without None's name.

    >>> unset("PATH").metavar
    'PATH'
    """
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


class _Held(io.StringIO):
    """Keeps what is printed, with the colours and lines of the stream it will go to."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stream.encoding

    def isatty(self) -> bool:
        return self.stream.isatty()


def _wrapped(text: str, width: int) -> str:
    """A help text with its paragraphs, which tyro leaves in one line each, broken between words.

    >>> print(_wrapped("one two three four\\n  derts an example\\n│ a row of a box", 10))
    one two
    three four
      derts an example
    │ a row of a box
    """
    lines = []
    for line in text.split("\n"):
        long = len(line) > width and line[:1].isalpha()
        lines += textwrap.wrap(line, width, break_long_words=False) if long else [line]
    return "\n".join(lines)


def _reason(box: str) -> str:
    """The first sentences of tyro's error box, without its frame.

    >>> _reason(" Required options \\n ------- \\n  Missing from derts predict: \\n  --query PATH ")
    'Missing from derts predict: --query PATH'
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [line.strip("│|╭╮╰╯+─ ") for line in plain.splitlines()]
    useful = []
    # the first line is the box's title
    for line in [line for line in lines if line.strip("-")][1:]:
        if "full helptext" in line or line.startswith("Argument helptext"):
            break
        useful.append(line)
    return " ".join(useful[:3]) or "these options are not understood"


def print_rows(rows: Sequence[tuple[str, str]]) -> None:
    """Aligned `name  value` lines on standard output."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """A heading and rows in aligned columns on standard output."""
    print(table_text(rows))


def csv_bytes(rows: Sequence[Sequence[str]]) -> bytes:
    """A heading and rows as the content of a CSV file.

    >>> csv_bytes([("image", "class"), ("a,b.png", "cat")])
    b'image,class\\n"a,b.png",cat\\n'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
