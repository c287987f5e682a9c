"""derts demo"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from derts.commands.parse import parse, table_text
from derts.errors import DertsError

DESCRIPTION = """Compare random sampling with derts on built-in data with many mislabelled tasks.

Trains a small ProtoNet on glyphs, both strategies from the same warm-up and with the same seeds,
and prints accuracy on characters never trained on, with the paired difference and its interval.
"""
# few enough images that a pool uses each many times, so that embedding them is cheap
CHARACTERS, IMAGES = 120, 20
SMALL = {"model": {"width": 4}, "meta_batch": 2, "evaluation": {"tasks": 20}}


@dataclass(frozen=True)
class DemoOptions:
    """Options of `derts demo`."""

    seeds: int = 2
    """Paired seeds."""
    updates: int | None = None
    """Updates per run (default: the demo preset's)."""
    out: Path = Path("runs/demo")
    """Folder for report.txt and results.json."""
    quiet: bool = False
    """No progress, just the result."""
    small: bool = False
    """A tiny model and few test tasks: to see that it runs, in seconds."""


def demo(arguments: Sequence[str]) -> None:
    """Parse, compare, print."""
    options = parse(DemoOptions, arguments, "demo", DESCRIPTION)

    if options.seeds < 1:
        raise DertsError(f"--seeds is {options.seeds}: it must be at least 1")
    options.out.mkdir(parents=True, exist_ok=True)

    from derts.comparison import compare
    from derts.config_file import apply_presets, with_values
    from derts.data import glyphs
    from derts.progress import progress

    config = apply_presets(["demo"])
    if options.small:
        config = with_values(config, SMALL, "--small")
    if options.updates is not None:
        config = with_values(config, {"updates": options.updates}, "--updates")
    tables = glyphs(characters=CHARACTERS, images_per_character=IMAGES)
    names = ("random", "derts")
    variants = {name: {"strategy": {"name": name}} for name in names}
    warmup = min(config.strategy.warmup, config.updates)
    total = options.seeds * (warmup + len(names) * (config.updates - warmup))
    with progress("comparing", total, "updates", quiet=options.quiet) as advance:
        found = compare(config, variants, range(options.seeds), tables, advance=advance)
    found.save(options.out / "results.json")
    fraction, flip = config.tasks.noisy_fraction, config.tasks.flip
    about = (
        f"ProtoNet on glyphs, {config.updates} updates ({warmup} of them shared warm-up); "
        f"{100 * fraction:.0f}% of the training tasks have {100 * flip:.0f}% wrong labels.\n"
        f"Accuracy in % on {config.evaluation.tasks} clean tasks of new characters, "
        f"mean ± 95% interval over {options.seeds} seeds:\n"
    )
    report = f"{about}\n{table_text(found.table())}\n"
    (options.out / "report.txt").write_text(report, encoding="utf-8")
    print(report)
    print(f"report   {options.out / 'report.txt'}\nresults  {options.out / 'results.json'}")
