"""derts demo"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from derts.commands.parse import parse, print_table

DESCRIPTION = """Compare random sampling with derts on built-in data with many mislabelled tasks.

Trains a small ProtoNet on glyphs, both strategies from the same warm-up and with the same seeds,
and prints accuracy on characters never trained on, with the paired difference and its interval.
"""


@dataclass(frozen=True)
class DemoOptions:
    """Options of `derts demo`."""

    seeds: int = 2
    """Paired seeds."""
    updates: int | None = None
    """Updates per run (default: the demo preset's)."""
    out: Path = Path("runs/demo")
    """Folder for results.json and the table."""
    quiet: bool = False
    """No progress, just the result."""


def demo(arguments: Sequence[str]) -> None:
    """Parse, compare, print."""
    options = parse(DemoOptions, arguments, "demo", DESCRIPTION)

    from derts.comparison import compare
    from derts.config_file import apply_presets, with_values
    from derts.data import glyphs
    from derts.progress import progress

    config = apply_presets(["demo"])
    if options.updates is not None:
        config = with_values(config, {"updates": options.updates}, "--updates")
    tables = glyphs(characters=DEMO_CHARACTERS, images_per_character=DEMO_IMAGES)
    variants = {
        "random": {"strategy": {"name": "random"}},
        "derts": {"strategy": {"name": "derts"}},
    }
    warmup = min(config.strategy.warmup, config.updates)
    total = options.seeds * (warmup + 2 * (config.updates - warmup))
    with progress("comparing", total, "updates", quiet=options.quiet) as advance:
        found = compare(config, variants, range(options.seeds), tables, advance=advance)
    options.out.mkdir(parents=True, exist_ok=True)
    found.save(options.out / "results.json")
    fraction, flip = config.tasks.noisy_fraction, config.tasks.flip
    print(
        f"ProtoNet on glyphs, {config.updates} updates ({warmup} of them shared warm-up); "
        f"{100 * fraction:.0f}% of the training tasks have {100 * flip:.0f}% wrong labels.\n"
        f"Accuracy in % on {config.evaluation.tasks} clean tasks of new characters, "
        f"mean ± 95% interval over {options.seeds} seeds:\n"
    )
    print_table(found.table())
    print(f"\nresults  {options.out / 'results.json'}")


DEMO_CHARACTERS, DEMO_IMAGES = 200, 20
