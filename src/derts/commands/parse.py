"""Options as dataclasses through tyro; a mistake is one line."""

import contextlib
import inspect
import io
import os
import re
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import tyro

from derts.config import check_ranges
from derts.errors import DertsError, printable
from derts.progress import Progress, progress, silent

Options = TypeVar("Options")


def parse(kind: type[Options], arguments: Sequence[str], command: str) -> Options:
    """Parse a command's arguments into its options dataclass, whose docstring describes it.

    Where it has a method `defaults`, that gives the options' defaults from the arguments.
    """
    said = io.StringIO()
    default = getattr(kind, "defaults", lambda words: None)(arguments)
    if os.environ.get("NO_COLOR"):
        os.environ["TERM"] = "dumb"  # all that tyro looks at
    if not {"-h", "--help"}.isdisjoint(arguments):
        width = shutil.get_terminal_size().columns
        for part in (inspect.getdoc(kind) or "").split("\n\n"):
            print(part if "\n  " in part else textwrap.fill(part, width), end="\n\n")
    try:
        with contextlib.redirect_stderr(said):
            found = tyro.cli(
                kind, prog=f"derts {command}", description="", args=arguments, default=default
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise DertsError(f"{_reason(said.getvalue())} (derts {command} --help)") from None
    assert found is not None
    check_ranges(found)
    return found


def unset(metavar: str) -> Any:
    """How the help shows an option that may be left out: without None's name."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Where the data of a run is: options that several commands share."""

    data: Annotated[str | None, unset("DATA")] = None
    """Other data than the run was trained on."""
    data_changed: bool = False
    """Go on although the data was prepared anew since the run was trained."""


@dataclass(frozen=True, kw_only=True)
class QuietOptions:
    """How much is told: an option that several commands share."""

    quiet: bool = False
    """No progress, just the result."""

    @property
    def progress(self) -> Progress:
        return silent if self.quiet else progress


def _reason(box: str) -> str:
    """The first sentences of tyro's error box, without its frame, title and colours."""
    box = re.sub(r"\x1b\[[0-9;]*m", "", box)
    if "Missing from" in box:
        missing = box.partition("Missing from")[2].partition("For full helptext")[0]
        names = re.findall(r"^\W? {4,5}(\S.*?) *\W?$", missing, re.M)
        return f"Missing: {', '.join(names)}"
    lines = [line.strip("│|╭╮╰╯+─ ") for line in box.splitlines()]
    useful: list[str] = []
    for line in [line for line in lines if line.strip("-")][1:]:
        if "full helptext" in line or line.startswith("Argument helptext"):
            break
        useful.append(line)
    return " ".join(useful[:3]).removesuffix(" Got errors:") or "these options are not understood"


def print_rows(*rows: tuple[str, object]) -> None:
    """Aligned `name  value` lines on standard output; what has no value is left out."""
    told = [(name, value) for name, value in rows if value]
    width = max(len(name) for name, _ in told)
    for name, value in told:
        print(f"{name:<{width}}  {printable(value)}")
