"""derts demo"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from derts.commands.parse import parse, unset
from derts.errors import DertsError
from derts.report.tables import table_text

# few enough images that a pool uses each many times, so that embedding them is cheap
CHARACTERS, IMAGES = 120, 20
DATA = f"glyphs-{CHARACTERS}x{IMAGES}"
SETTINGS = {"data": DATA, "validate_every": 15, "log_every": 5}
SMALL = {"model": {"width": 4}, "meta_batch": 2, "evaluation": {"tasks": 20}}


@dataclass(frozen=True)
class DemoOptions:
    """Compare random sampling with derts on built-in data with many mislabelled tasks.

    Trains a small ProtoNet on glyphs, both strategies from the same warm-up and with the same
    seeds, prints accuracy on characters never trained on, with the paired difference and its
    interval, and writes a page for your browser.

    Examples:
      derts demo
      derts demo --small --seeds 1 --out /tmp/demo
    """

    seeds: int = 2
    """Paired seeds."""
    updates: Annotated[int | None, unset("INT")] = None
    """Updates per run (default: the demo preset's)."""
    out: Path = Path("runs/demo")
    """Folder for the report, results.json and a run folder per strategy and seed."""
    quiet: bool = False
    """No progress, just the result."""
    small: bool = False
    """A tiny model and few test tasks: to see that it runs, in seconds."""


def demo(arguments: Sequence[str]) -> None:
    """Parse, compare, print."""
    options = parse(DemoOptions, arguments, "demo")

    if options.seeds < 1:
        raise DertsError(f"--seeds is {options.seeds}: it must be at least 1")
    options.out.mkdir(parents=True, exist_ok=True)

    from derts.comparison import compare
    from derts.config_file import apply_presets, with_values
    from derts.data import open_data
    from derts.files import write_atomically
    from derts.progress import progress
    from derts.report.page import make_report

    config = with_values(apply_presets(["demo"]), SETTINGS, "the demo")
    if options.small:
        config = with_values(config, SMALL, "--small")
    if options.updates is not None:
        config = with_values(config, {"updates": options.updates}, "--updates")
    seeds, names = range(options.seeds), ("random", "derts")
    variants = {name: {"strategy": {"name": name}} for name in names}
    warmup = min(config.strategy.warmup, config.updates)
    total = options.seeds * len(names) * config.updates
    with progress("demo", total, "updates", quiet=options.quiet) as advance:
        tables = open_data(DATA)
        found = compare(config, variants, seeds, tables, advance=advance, folder=options.out)
    found.save(options.out / "results.json")
    about = (
        f"ProtoNet on glyphs, {config.updates} updates ({warmup} of them shared warm-up); "
        f"{100 * config.tasks.noisy_fraction:.0f}% of the training tasks have 80% wrong labels.\n"
        f"Accuracy in % on {config.evaluation.tasks} clean tasks of new characters, "
        f"mean ± 95% interval over {options.seeds} seeds:\n"
    )
    report = f"{about}\n{table_text(found.table())}\n"
    write_atomically(options.out / "report.txt", report.encode())
    print(report)
    runs = [options.out / f"{name}-seed{seed}" for name in names for seed in seeds]
    page = make_report(runs).save(options.out / "report.html")
    print(f"results  {options.out / 'results.json'}")
    print(f"report   {page.resolve()}  (open it in a browser)")
