"""derts train"""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import tyro

from derts.commands.parse import QuietOptions, print_rows, unset
from derts.config import TrainConfig
from derts.config_file import PRESETS, apply_presets, read_config
from derts.errors import DertsError
from derts.report.tables import table_text
from derts.statistics import over_seeds

RESUMED = ("data", "updates")  # the settings that may be others when a run is resumed


@dataclass(frozen=True)
class TrainOptions(QuietOptions):
    __doc__ = f"""Train a few-shot learner on tasks and evaluate it on classes it has never seen.

    Values come from the defaults; then from --preset (any of {", ".join(PRESETS)}; several may be
    given) and --config (a TOML file, such as a run's own config.toml), the later one wins; then
    from the options below.

    Examples:
      derts train --preset demo
      derts train --data my-store --learner.name anil --tasks.shot 1 --updates 3000
      derts train --config runs/first/config.toml --seed 1 --out runs/second
      derts train --resume runs/second
      derts train --resume runs/second --updates 5000
      derts train --data my-store --seeds 0 1 2 --out runs/three   # runs/three/seed-0, …
      derts train --resume runs/three
    """

    preset: Annotated[tuple[str, ...], unset("NAME [NAME …]")] = ()
    """Named sets of values, applied in order."""
    config: Annotated[Path | None, unset("FILE")] = None
    """A TOML file of values."""
    out: Annotated[Path | None, unset("FOLDER")] = None
    """Run folder to write (default: runs/ with a name made from the config)."""
    overwrite: bool = False
    """Replace a run that is already there."""
    resume: Annotated[Path | None, unset("RUN")] = None
    """Go on with this run by its own config; with more --updates also where it is finished, with
    --data where its data is elsewhere now."""
    seeds: Annotated[tuple[int, ...], unset("INT [INT …]")] = ()
    """One run per seed, in FOLDER/seed-N, one after the other in one process: data is opened and
    kernels are compiled once. --resume FOLDER goes on with all of them."""
    data_changed: bool = False
    """Go on although the data was prepared anew since the run was trained."""
    tensorboard: bool = False
    """Also write curves for TensorBoard into the run folder (needs derts[tensorboard])."""
    run: Annotated[TrainConfig, tyro.conf.arg(name="")] = field(default_factory=TrainConfig)

    @staticmethod
    def defaults(arguments: Sequence[str]) -> "TrainOptions":
        """What presets and a config file say: the defaults of all other options."""
        early = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        layers: dict[str, Any] = {"dest": "layers", "action": "append", "default": []}
        early.add_argument("--preset", nargs="+", **layers)
        early.add_argument("--config", nargs=1, type=Path, **layers)
        early.add_argument("--resume", type=Path)
        early.add_argument("--seed", nargs="+")
        early.add_argument("--seeds", nargs="+")
        words = [word for word in arguments if word not in ("-h", "--help")]
        try:
            known, _ = early.parse_known_args(words)
        except argparse.ArgumentError as error:
            name = error.argument_name
            one = f"one of {', '.join(PRESETS)}" if name == "--preset" else "a path or numbers"
            raise DertsError(f"{name} names none: give {one} after it") from None
        own = known.resume
        if known.seeds and (known.seed or own):
            raise DertsError("--seeds goes with neither --seed nor --resume: leave one out")
        config = TrainConfig()
        if own is not None:
            from derts.training.run import seed_folders

            paths = [folder / "config.toml" for folder in (own, *seed_folders(own))]
            config = next((read_config(path) for path in paths if path.is_file()), config)
        for layer in known.layers:
            given = isinstance(layer[0], Path)
            config = read_config(layer[0], config) if given else apply_presets(layer, config)
        return TrainOptions(run=config)


def train(options: TrainOptions) -> None:
    from derts.report.read import differing_settings
    from derts.training import resume
    from derts.training import train as run
    from derts.training.run import begin_seeds, seed_folders, train_seeds
    from derts.training.run_folder import Run

    config, quiet, seeds = options.run, options.quiet, options.seeds
    out = options.resume or options.out or Path("runs") / default_name(config, not seeds)
    folders = [] if (out / "config.toml").exists() or not options.resume else seed_folders(out)
    if (seeds or folders) and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise DertsError("--seeds is for one process: start torchrun once per seed, with --seed")

    listen: Callable[[Path], Any]
    listen = tensorboard_listener if options.tensorboard else lambda folder: None
    changes: dict[str, Any] = {}
    if options.resume is not None:
        own = Run.open(folders[0] if folders else out).config
        refused = [name for name in differing_settings([own, config]) if name not in RESUMED]
        if refused:
            option = refused[0].replace("_", "-")
            raise DertsError(f"--resume goes on by the run's own settings: leave out --{option}")
        values = {name: getattr(config, name) for name in RESUMED}
        changes = {name: value for name, value in values.items() if value != getattr(own, name)}
        changes["data_changed"] = options.data_changed
    if seeds or folders:
        folders = folders or begin_seeds(config, seeds, out, options.overwrite)
        _print_seeds(out, folders, train_seeds(folders, quiet=quiet, listen=listen, **changes))
        return
    if options.resume is not None:
        result = resume(out, quiet=quiet, listen=listen(out), **changes)
    else:
        result = run(config, out, overwrite=options.overwrite, quiet=quiet, listen=listen(out))
    if not int(os.environ.get("RANK", "0")):  # one of several processes: the first one tells
        _print_run(out, config, result)


def tensorboard_listener(run: Path) -> Callable[[dict[str, Any]], None]:
    """A function that writes the numbers of a run's events into its folder, as curves."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise DertsError(
            "--tensorboard needs TensorBoard: pip install 'derts[tensorboard]', or leave it out"
        ) from None
    from derts.report.read import flat

    writer = cache(lambda: SummaryWriter(str(run / "tensorboard")))

    def listen(event: dict[str, Any]) -> None:
        for name, value in flat(event, "/").items():
            if isinstance(value, int | float) and name not in ("update", "round"):
                writer().add_scalar(f"{event['event']}/{name}", float(value), event["update"])
        writer().flush()

    return listen


def _print_run(out: Path, config: TrainConfig, result: dict[str, Any]) -> None:
    from derts.clock import training_seconds
    from derts.report.read import what_it_did

    tasks, name, of = config.tasks, config.strategy.name, result["weights_of_update"]
    training, peak = training_seconds(result["seconds"]), result.get("peak_gib")
    each = 1000 * training / max(result["updates"], 1)
    rotated = ", every class rotated too" if tasks.rotated else ""
    reached = f"{result['accuracy']:.2f}% ± {result['interval']:.2f} on "
    reached += f"{len(result['accuracies'])} {result['split']} tasks"
    reached += f", weights of update {of}" if of != result["updates"] else ""
    print_rows(
        ("learner", f"{config.learner.name}, {config.model.backbone}-{config.model.width}"),
        ("tasks", f"{tasks.way} way, {tasks.shot} shot, from {config.data}{rotated}"),
        ("strategy", name),
        ("did", name != "random" and what_it_did(config, result["rounds"], result["parts"])),
        *[("note", text) for text in result["notes"]],
        ("updates", f"{result['updates']} in {training:.1f} s ({each:.1f} ms each)"),
        ("selection", f"{100 * result['selection_share']:.1f}% of the time after the warm-up"),
        ("memory", peak and f"{peak:.1f} GiB at the peak"),
        ("accuracy", reached),
        ("run", out),
        ("next", f"derts report {out}"),
    )


def _print_seeds(out: Path, folders: Sequence[Path], results: Sequence[dict[str, Any]]) -> None:
    """A row per seed, the mean over seeds, and what the runs shared."""
    rows: list[tuple[str, ...]] = [("run", "updates", "ms/update", "accuracy")]
    for folder, result in zip(folders, results, strict=True):
        each = f"{1000 * (result['seconds_per_update'] or 0.0):.1f}"
        reached = f"{result['accuracy']:.2f} ± {result['interval']:.2f}"
        rows.append((folder.name, str(result["updates"]), each, reached))
    mean = over_seeds([result["accuracy"] for result in results])
    print(f"{table_text([*rows, ('mean', '', '', str(mean))])}\n")
    notes = dict.fromkeys(text for result in results for text in result["notes"])
    shared = "one process for all: data opened once, kernels compiled once"
    print_rows(
        *[("note", text) for text in (shared, *notes)],
        ("intervals", "95%, of a run over its test tasks, of the mean over seeds"),
        ("next", f"derts report {out}"),
    )


def default_name(config: TrainConfig, with_seed: bool) -> str:
    """A folder name that tells runs apart."""
    tasks, names = config.tasks, (config.learner.name, config.strategy.name, Path(config.data).name)
    extra = [tasks.noise_kind] * (tasks.noise_kind != "none") + ["rotated"] * tasks.rotated
    seed = [f"seed{config.seed}"] * with_seed
    return "-".join((*names, *extra, f"{tasks.way}way{tasks.shot}shot", *seed))
