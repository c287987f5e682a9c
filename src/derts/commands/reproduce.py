"""derts reproduce"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from derts.commands.parse import QuietOptions, print_rows, unset
from derts.config import within
from derts.errors import DertsError


@dataclass(frozen=True)
class ReproduceOptions(QuietOptions):
    """Run the paper's experiments again and put our numbers beside its own.

    NAME is one of table1 … table8, figure2 (training curves with noisy tasks), case-study (pictures
    of selected and unselected tasks), or all. Every run has its own folder under --out: what is
    finished is never run again, what was interrupted goes on. At the end, and with --report alone,
    a report is printed and written as Markdown, HTML and JSON to OUT/report.

    Examples:
      derts reproduce all --dry-run
      derts reproduce table4 --dataset mini=stores/mini --updates-scale 0.25 --preset gpu
      derts reproduce table1 --dataset mini=stores/mini --only strategy=random,strategy=derts,shot=5
      derts reproduce table1 --dataset mini=stores/mini --report
      derts reproduce all --dataset glyphs --updates-scale 0.001 --seeds 1
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional, unset("NAME [NAME …]")] = ()
    """table1 … table8, figure2, case-study, or all."""
    dataset: Annotated[tuple[str, ...], unset("NAME=PATH …")] = ()
    """Prepared stores, as mini=PATH and tiered=PATH; or glyphs, built in, in place of both."""
    seeds: int = within(3, 1)
    """Paired seeds: 0, 1, …"""
    only: Annotated[tuple[str, ...], unset("KEY=VALUE,… …")] = ()
    """Just the cells with these values, as learner=anil,strategy=random,shot=5,fraction=0.1 (also
    dataset, backbone, classes, noise, ratio, weights=no); values of one key are alternatives."""
    updates_scale: float = within(1.0, 1e-6, 100)
    """Multiplies updates, warm-up and evaluation points: 0.1 for a quick look."""
    preset: Annotated[tuple[str, ...], unset("NAME [NAME …]")] = ()
    """Presets of derts train on top of the recipes: gpu for bfloat16 and the fastest kernels,
    augment for random flips and translations, rotated for classes that are rotated as well."""
    dry_run: bool = False
    """Only list every cell with its estimated time."""
    report: bool = False
    """Train nothing, report what is there."""
    from_results: Annotated[
        Path | None, tyro.conf.arg(name="from", metavar="FOLDER", help_behavior_hint="")
    ] = None
    """With --report: read reproduce-NAME.json files of this folder instead of run folders."""
    known: Annotated[Path | None, unset("FOLDER")] = None
    """Folder of reproduce-*.json files that stand for run folders which are gone: what they hold
    by today's recipes is not run again, and is reported beside what is."""
    out: Path = Path("runs/reproduce")
    """Folder for the run folders and the report."""
    devices: tuple[str, ...] = ("auto",)
    """One worker process for each device named (auto: every GPU, else the CPU)."""
    on: Literal["here", "ray"] = "here"
    """Run on this machine, or on the Ray cluster that RAY_ADDRESS names."""


def reproduce(options: ReproduceOptions) -> None:
    source, known = options.from_results, options.known
    if options.dry_run and options.report:
        raise DertsError("--dry-run lists what would be run, --report what was: give one of them")
    if source is not None and not options.report:
        raise DertsError("--from reads results for a report: add --report")
    if source is not None and known is not None:
        raise DertsError("--from reports nothing but what it names, --known adds to runs: give one")

    from derts.data import open_data
    from derts.files import locked
    from derts.paper.cells import chosen_names
    from derts.paper.experiment import Experiment
    from derts.paper.grid import find_devices, run_grid, run_on_ray
    from derts.paper.runs import Scale, parse_datasets

    scale = Scale(parse_datasets(options.dataset), options.updates_scale, options.preset)
    names, seeds = chosen_names(options.names), range(options.seeds)
    experiment = Experiment(names, options.only, seeds, scale, options.out, known)
    if known is not None:
        print(experiment.told_of_known())
    for name in names:
        if name not in experiment.names:
            print(f"{name}: --only leaves none of its cells")
    if options.dry_run:
        print(experiment.plan(find_devices(options.devices)))
        return
    if not options.report and (runs := experiment.to_run()):
        with locked(options.out):
            if options.on == "ray":
                endings = run_on_ray(runs, options.quiet)
            else:
                for data in dict.fromkeys(run.config.data for run in runs):
                    open_data(data)  # one line for what would fail in every run
                endings = run_grid(runs, find_devices(options.devices), options.quiet)
        if endings.failed and endings.finished and not endings.stopped:
            experiment.write_reports(None)
        endings.check()
    for path in experiment.write_reports(source):
        print_rows(("written", path))
