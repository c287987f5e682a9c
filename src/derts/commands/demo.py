"""derts demo: two stories, told by the commands that a user would type"""

import itertools
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from derts.cli import dispatch
from derts.commands.parse import QuietOptions, unset
from derts.config import within
from derts.errors import DertsError
from derts.report.tables import table_text

# few enough images that a pool uses each many times, so that embedding them is cheap
CHARACTERS, IMAGES = 120, 20
SETTINGS = f"--preset demo --data glyphs-{CHARACTERS}x{IMAGES} --validate-every 15"
LABELS_DATA, LABELS_UPDATES = "glyphs-60x40", 300
LABELS_SETTINGS = "--tasks.query 5 --model.width 16 --meta-batch 8"
SMALL = "--model.width 4 --meta-batch 2 --evaluation.tasks 20"


@dataclass(frozen=True)
class DemoOptions(QuietOptions):
    """Compare random sampling with derts on built-in data with many mislabelled tasks.

    Trains a small ProtoNet on glyphs by both strategies with the same seeds, and so with the same
    warm-up, prints accuracy on characters never trained on, with the paired difference and its
    interval, and writes a page for your browser.

    Examples:
      derts demo
      derts demo --small --seeds 1 --out /tmp/demo
      derts demo --wrong-labels --out runs/wrong-labels
    """

    seeds: int = within(2, 1)
    """Paired seeds."""
    updates: Annotated[int | None, unset("INT")] = within(None, 1)
    """Updates per run (default: the demo preset's; 300 with --wrong-labels)."""
    out: Path = Path("runs/demo")
    """Folder for a run folder per strategy and seed, which replaces an older one, the report and
    results.json; with --wrong-labels a new one, for stores and runs."""
    small: bool = False
    """A tiny model and few test tasks: to see that it runs, in seconds. Too weak a judge to find
    wrong labels."""
    wrong_labels: bool = False
    """Another story: a fifth of the images lies in a wrong class, and is found and cleaned."""


def demo(options: DemoOptions) -> None:
    if options.wrong_labels:
        _wrong_labels(options)
    else:
        _noisy_tasks(options)


def _step(*words: object) -> None:
    given = [str(word) for word in words]
    print(f"$ derts {shlex.join(given)}", flush=True)
    dispatch(given)


def _train(options: DemoOptions, out: Path, settings: str, *words: object) -> Path:
    """Train in a folder, which is returned."""
    settings = f"{settings} {SMALL}" if options.small else settings
    _step("train", *shlex.split(settings), *words, "--out", out, *["--quiet"] * options.quiet)
    return out


def _noisy_tasks(options: DemoOptions) -> None:
    from derts.files import write_atomically, write_json
    from derts.report.read import comparison_table, finished_results, group_runs, read_runs

    length = [] if options.updates is None else ["--updates", options.updates]
    folders = []
    for seed, name in itertools.product(range(options.seeds), ("random", "derts")):
        words = ["--strategy.name", name, "--seed", seed, *length, "--overwrite"]
        folders.append(_train(options, options.out / f"{name}-seed{seed}", SETTINGS, *words))
    _step("report", *folders, "--out", options.out / "report.html")
    runs = read_runs(folders)
    results = [{**(run.result or {}), "variant": run.config.strategy.name} for run in runs]
    write_json(options.out / "results.json", {"runs": results})
    config = runs[0].config
    warmup = min(config.strategy.warmup, config.updates)
    report = (
        f"ProtoNet on glyphs, {config.updates} updates ({warmup} of them warm-up); "
        f"{100 * config.tasks.noise_level:.0f}% of the training tasks have 80% wrong labels.\n"
        f"Accuracy in % on {config.evaluation.tasks} clean tasks of new characters, "
        f"mean ± 95% interval over {options.seeds} seed{'s' if options.seeds > 1 else ''}:\n\n"
        f"{table_text(comparison_table(finished_results(group_runs(runs))))}\n"
    )
    write_atomically(options.out / "report.txt", report.encode())
    print(f"\n{report}\nopen {(options.out / 'report.html').resolve()} in a browser")


def _wrong_labels(options: DemoOptions) -> None:
    folder = options.out
    wrong, cleaned, judge = (folder / name for name in ("wrong-glyphs", "clean-glyphs", "judge"))
    if wrong.exists():
        raise DertsError(f"{folder} holds this demo already: delete it, or give another --out")
    updates = LABELS_UPDATES if options.updates is None else options.updates

    def train(data: object, out: Path, updates: int, seed: int = 0) -> Path:
        length = ["--updates", updates, "--seed", seed]
        return _train(options, out, LABELS_SETTINGS, "--data", data, *length)

    _step("data", "corrupt", LABELS_DATA, wrong, "--noise", "symmetric", "--rate", 0.2)
    train(wrong, judge, max(1, updates // 2))  # a longer one overfits the wrong labels
    _step("inspect", judge, "--score")
    _step("clean", judge, cleaned)
    labels = {"true": LABELS_DATA, "a-fifth-wrong": wrong, "cleaned": cleaned}
    runs = itertools.product(labels, range(options.seeds))
    _step(
        "compare",
        *(train(labels[name], folder / f"{name}-seed{seed}", updates, seed) for name, seed in runs),
    )
    print(f"\nThe judge was trained for {max(1, updates // 2)} updates more.")
