"""derts demo"""

import itertools
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from derts.commands.parse import QuietOptions, unset
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
class DemoOptions(QuietOptions):
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
    updates: Annotated[int | None, unset("INT")] = within(None, 1)
    """Updates per run (default: the demo preset's)."""
    out: Path = Path("runs/demo")
    """Folder for the report, results.json and a run folder per strategy and seed."""
    small: bool = False
    """A tiny model and few test tasks: to see that it runs, in seconds."""
    wrong_labels: bool = False
    """Another story: a fifth of the images lies in a wrong class, and is found and cleaned."""


def demo(options: DemoOptions) -> None:
    if options.wrong_labels:
        _wrong_labels(options)
        return

    from derts.config_file import apply_presets, with_values
    from derts.data import open_data
    from derts.files import write_atomically, write_json
    from derts.report.page import make_report
    from derts.report.read import comparison_table, finished_results, group_runs, read_runs
    from derts.training.run import train_in
    from derts.training.run_folder import Run

    values: dict[str, Any] = {**SETTINGS, **(SMALL if options.small else {})}
    if options.updates is not None:
        values["updates"] = options.updates
    base = with_values(apply_presets(["demo"]), values, "the demo")
    tables, results = open_data(DATA), {}
    with TemporaryDirectory() as warm_ups:
        for seed, name in itertools.product(range(options.seeds), ("random", "derts")):
            settings = {"strategy": {"name": name}, "seed": seed}
            config = with_values(base, settings, "the demo").resolved()
            folder, warm_up = options.out / f"{name}-seed{seed}", Path(warm_ups, str(seed))
            Run.check_free(folder, overwrite=True)
            shutil.rmtree(folder, ignore_errors=True)
            with options.progress(folder.name, config.updates, "updates") as advance:
                result = train_in(folder, config, tables, warmup=warm_up, advance=advance)
            results[folder] = {**(result or {}), "variant": name}
    write_json(options.out / "results.json", {"runs": list(results.values())})
    warmup = min(base.strategy.warmup, base.updates)
    about = (
        f"ProtoNet on glyphs, {base.updates} updates ({warmup} of them shared warm-up); "
        f"{100 * base.tasks.noise_level:.0f}% of the training tasks have 80% wrong labels.\n"
        f"Accuracy in % on {base.evaluation.tasks} clean tasks of new characters, "
        f"mean ± 95% interval over {options.seeds} seed{'s' if options.seeds > 1 else ''}:\n"
    )
    table = comparison_table(finished_results(group_runs(read_runs([*results]))))
    report = f"{about}\n{table_text(table)}\n"
    write_atomically(options.out / "report.txt", report.encode())
    print(report)
    page = make_report([*results]).save(options.out / "report.html")
    print(f"results  {options.out / 'results.json'}")
    print(f"report   {page.resolve()}  (open it in a browser)")


def _wrong_labels(options: DemoOptions) -> None:
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
    folders = []
    for name, data in {"true": LABELS_DATA, "a-fifth-wrong": wrong, "cleaned": cleaned}.items():
        for seed in range(options.seeds):
            folders.append(folder / f"{name}-seed{seed}")
            train(data, folders[-1], updates, seed)
    step("compare", *folders)
    print(f"\nThe judge was trained for {max(1, updates // 2)} updates more.")
