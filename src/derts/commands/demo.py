"""derts demo"""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from derts.commands.parse import unset
from derts.config import within
from derts.errors import DertsError
from derts.report.tables import table_text

# few enough images that a pool uses each many times, so that embedding them is cheap
CHARACTERS, IMAGES = 120, 20
DATA = f"glyphs-{CHARACTERS}x{IMAGES}"
SETTINGS = {"data": DATA, "validate_every": 15}
SMALL = {"model": {"width": 4}, "meta_batch": 2, "evaluation": {"tasks": 20}}

LABELS_DATA, LABELS_UPDATES = "glyphs-60x40", 300
LABELS_SETTINGS = "--tasks.query 5 --model.width 16 --meta-batch 8"
LABELS_SMALL = "--tasks.query 5 --model.width 4 --meta-batch 2 --evaluation.tasks 20"


@dataclass(frozen=True)
class DemoOptions:
    """Compare random sampling with derts on built-in data with many mislabelled tasks.

    Trains a small ProtoNet on glyphs, both strategies from the same warm-up and with the same
    seeds, prints accuracy on characters never trained on, with the paired difference and its
    interval, and writes a page for your browser.

    Examples:
      derts demo
      derts demo --small --seeds 1 --out /tmp/demo
      derts demo --wrong-labels --out runs/wrong-labels
    """

    seeds: int = within(2, 1)
    """Paired seeds."""
    updates: Annotated[int | None, unset("INT")] = None
    """Updates per run (default: the demo preset's)."""
    out: Path = Path("runs/demo")
    """Folder for the report, results.json and a run folder per strategy and seed."""
    quiet: bool = False
    """No progress, just the result."""
    small: bool = False
    """A tiny model and few test tasks: to see that it runs, in seconds."""
    wrong_labels: bool = False
    """Another story: a fifth of the images lies in a wrong class, and is found and cleaned."""


def demo(options: DemoOptions) -> None:
    """Compare, print."""
    options.out.mkdir(parents=True, exist_ok=True)
    if options.wrong_labels:
        _wrong_labels(options)
        return

    from derts.comparison import compare
    from derts.config_file import apply_presets, with_values
    from derts.data import open_data
    from derts.files import write_atomically
    from derts.progress import progress
    from derts.report.page import make_report

    values = {**SETTINGS, **(SMALL if options.small else {})}
    if options.updates is not None:
        values["updates"] = options.updates
    config = with_values(apply_presets(["demo"]), values, "the demo")
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
        f"{100 * config.tasks.noise_level:.0f}% of the training tasks have 80% wrong labels.\n"
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


def _wrong_labels(options: DemoOptions) -> None:
    """The commands of docs/wrong-labels.md, one after another, and a table."""
    from derts.cli import dispatch

    folder, quiet = options.out, ["--quiet"] * options.quiet
    wrong, cleaned, judge = (folder / name for name in ("wrong-glyphs", "clean-glyphs", "judge"))
    if wrong.exists():
        raise DertsError(f"{folder} holds this demo already: delete it, or give another --out")
    settings = shlex.split(LABELS_SMALL if options.small else LABELS_SETTINGS)
    updates = LABELS_UPDATES if options.updates is None else options.updates

    def step(*words: object) -> None:
        given = [str(word) for word in words]
        print(f"$ derts {shlex.join(given)}", flush=True)
        dispatch(given)

    def train(data: object, out: Path, updates: int, seed: int = 0) -> None:
        length = ["--updates", updates, "--seed", seed]
        step("train", "--data", data, *settings, *length, "--out", out, *quiet)

    step("data", "corrupt", LABELS_DATA, wrong, "--noise", "symmetric", "--rate", 0.2)
    train(wrong, judge, max(1, updates // 2))  # a longer one overfits the wrong labels
    step("inspect", judge, "--score")
    step("clean", judge, cleaned)
    rows = []
    for name, data in {"true": LABELS_DATA, "a fifth wrong": wrong, "cleaned": cleaned}.items():
        found = []
        for seed in range(options.seeds):
            out = folder / f"{name.replace(' ', '-')}-seed{seed}"
            train(data, out, updates, seed)
            found.append(json.loads((out / "result.json").read_text())["accuracy"])
        each = ", ".join(f"{accuracy:.1f}" for accuracy in found)
        rows.append(f"{name:<14} {sum(found) / len(found):5.1f}   ({each})")
    print(
        f"\nAccuracy in % on test tasks after {updates} updates (each seed); labels trained on:\n"
        + "\n".join(rows)
        + f"\nThe judge was trained for {max(1, updates // 2)} updates more."
    )
