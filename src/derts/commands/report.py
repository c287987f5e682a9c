"""derts report"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from derts.commands.parse import DataOptions, parse, unset
from derts.errors import DertsError


@dataclass(frozen=True)
class ReportOptions(DataOptions):
    """One page about runs: what they reached, what they selected, where the time went.

    RUN is a folder that derts train wrote, or a folder of such. Runs that differ in nothing but the
    seed are taken together; differences are paired, seed by seed, against random (or the first).
    The page needs no network; the tasks' images are in it where the runs' data is at hand.

    Examples:
      derts report runs/first
      derts report runs/random-* runs/derts-* -o report.html
      derts report runs/demo --png figures
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, unset("RUN [RUN …]")]
    """Run folders."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html")
    """The page to write."""
    png: Annotated[Path | None, unset("FOLDER")] = None
    """Also write each figure, in print quality, into this folder."""


def report(arguments: Sequence[str]) -> None:
    """Parse, read, write, print."""
    options = parse(ReportOptions, arguments, "report")

    if not options.runs:
        raise DertsError("no run is named: give at least one run folder (derts report --help)")
    if options.out.is_dir():
        raise DertsError(
            f"{options.out} is a folder: give the name of a file, such as {options.out}/report.html"
        )

    from derts.report.page import make_report

    made = make_report(options.runs, data=options.data, data_changed=options.data_changed)
    print(f"report   {made.save(options.out)}")
    if options.png is not None:
        count = len(made.figures.save(options.png))
        print(f"figures  {count} in {options.png}")
