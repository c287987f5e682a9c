"""derts inspect"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from derts.commands.parse import parse, print_rows, print_table, unset
from derts.errors import DertsError

if TYPE_CHECKING:
    from derts.labels.inspection import Suspect

DESCRIPTION = """Which classes and images look mislabelled? For somebody who cleans a data set.

Draws clean tasks from the run's data, lets its model solve them, and ranks images and classes by
how often they were taken for another class and how often their tasks look noisy. A ProtoNet is
asked about up to 20 classes at once with up to 20 examples each: that shows more than the few it
was trained with. Writes images.csv, classes.csv and images.png (the first hundred) into RUN/inspect
(RUN/inspect-val for --split val). Where the run trained with label noise of known kind, it also
says how many of the hundred labels that look most wrong really are; --truth does so for a data set
whose wrong labels you know.

Examples:
  derts inspect runs/first
  derts inspect runs/first --split val --tasks 5000 --out suspects
  derts inspect runs/first --truth truth.csv
"""
MOST_CLASSES, MOST_EXAMPLES = 20, 20
HEADING = ("class", "looks like", "seen", "mistaken", "tasks dropped", "probability of its label")


@dataclass(frozen=True)
class InspectOptions:
    """Options of `derts inspect`."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A folder that derts train wrote."""
    split: str = "train"
    """Which split to look at."""
    tasks: int = 0
    """Tasks to draw (0: so many that each image is asked about 20 times)."""
    truth: Annotated[Path | None, unset("FILE")] = None
    """A CSV with columns image (name or number, as in images.csv) and class (the true one)."""
    data: Annotated[str | None, unset("DATA")] = None
    """Other data than the run was trained on."""
    out: Annotated[Path | None, unset("FOLDER")] = None
    """Folder to write (default: RUN/inspect, or RUN/inspect-SPLIT)."""
    seed: int = 0
    """Which tasks are drawn."""
    quiet: bool = False
    """No progress, just the result."""


def inspect(arguments: Sequence[str]) -> None:
    """Parse, look, rank, write."""
    options = parse(InspectOptions, arguments, "inspect", DESCRIPTION)
    if options.tasks < 0:
        raise DertsError(f"--tasks is {options.tasks}: give 0 or a number of tasks")

    from derts.data import image_names, open_data
    from derts.labels.inspection import (
        enough_tasks,
        look_at,
        rank_classes,
        rank_images,
        wrong_among_first,
    )
    from derts.learners import ProtoNet
    from derts.progress import progress
    from derts.tasks import Noise, TaskPool, TaskSampler
    from derts.training.drawing import task_noise
    from derts.training.run import open_trainer
    from derts.training.run_folder import Run

    run = Run.open(options.run)
    data = options.data or run.config.data
    trainer = open_trainer(options.run, open_data(data))
    images = trainer.split(options.split)
    settings = trainer.config.tasks
    names = image_names(data, options.split) or [str(number) for number in range(len(images))]
    truth = None if options.truth is None else _read_truth(options.truth, names)

    def draw(purpose: str, way: int, shot: int, noise: Noise | None) -> TaskPool:
        return sampler.draw(
            tasks=tasks,
            way=way,
            shot=shot,
            query=settings.query,
            seed=(options.seed, purpose),
            noise=noise,
        )

    learner = trainer.learner
    wide, deep = settings.way, settings.shot
    if isinstance(learner, ProtoNet):
        smallest = min(len(group) for group in images.class_indices())
        wide = max(wide, min(MOST_CLASSES, len(images.class_names)))
        deep = max(deep, min(MOST_EXAMPLES, smallest - settings.query))
    tasks = options.tasks or enough_tasks(images, wide, settings.query)
    noise = task_noise(settings)
    total = tasks * (1 if noise is None else 2)
    sampler = TaskSampler(images)
    with progress("inspecting", total, "tasks", quiet=options.quiet) as advance:
        pool = draw("inspect", wide, deep, None)
        broad = learner.with_way(wide) if isinstance(learner, ProtoNet) else learner
        looks = look_at(broad, images, pool, options.seed, advance)
        notes = []
        if noise is not None:
            noisy = draw("noisy", settings.way, settings.shot, noise)
            seen = look_at(learner, images, noisy, options.seed, advance)
            first, wrong, share = wrong_among_first(noisy, seen)
            notes.append(_known(first, wrong, share, f"labels of tasks with {noise}"))
    suspects = rank_images(images, pool, looks)
    classes = rank_classes(images, suspects)
    if truth is not None:
        given = {one.index: truth.get(names[one.index], one.class_name) for one in suspects}
        bad = [one.class_name != given[one.index] for one in suspects]
        notes.append(_known(len(bad[:100]), sum(bad[:100]), sum(bad) / len(bad), "images"))
    out = options.out or run.path / where_to_write(options.split)
    out.mkdir(parents=True, exist_ok=True)
    _write(out / "images.csv", ("image", *HEADING), [(names[s.index], *_row(s)) for s in suspects])
    _write(out / "classes.csv", HEADING, [_row(one) for one in classes])
    _sheet(images, suspects, names, out / "images.png")
    print_table([HEADING, *(_row(one) for one in classes[:10])])
    print()
    if sum(one.mistaken * one.seen for one in suspects) < 0.002 * sum(s.seen for s in suspects):
        notes.append(
            "hardly an image was mistaken: the model may know this split by heart; look at another "
            "(--split val), or train for fewer updates"
        )
    for note in notes:
        print(note)
    print_rows(
        [
            ("images", f"{out / 'images.csv'}, {out / 'images.png'}"),
            ("classes", str(out / "classes.csv")),
        ]
    )


def where_to_write(split: str) -> str:
    """The folder of a split's lists: one look does not overwrite that at another split.

    >>> where_to_write("train"), where_to_write("val")
    ('inspect', 'inspect-val')
    """
    return "inspect" if split == "train" else f"inspect-{split}"


def _known(first: int, wrong: int, share: float, what: str) -> str:
    chance = f"{share * first:.0f} by chance"
    return f"of the first {first} {what}, {wrong} really are mislabelled ({chance})"


def _row(one: Suspect) -> tuple[str, ...]:
    return (
        one.class_name,
        one.looks_like,
        str(one.seen),
        f"{100 * one.mistaken:.1f}%",
        f"{100 * one.dropped:.1f}%",
        f"{100 * one.probability:.1f}%",
    )


def _write(path: Path, heading: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from derts.files import write_atomically

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows((heading, *rows))
    write_atomically(path, text.getvalue().encode())


def _sheet(images: Any, suspects: Sequence[Suspect], names: Sequence[str], path: Path) -> None:
    from derts.report.pictures import small_picture
    from derts.report.sheet import MOST, SIDE, draw_sheet

    first = suspects[:MOST]
    pictures = [small_picture(images, one.index, SIDE) for one in first]
    captions = [
        f"{Path(names[one.index]).name}\n{one.class_name} ({100 * one.mistaken:.0f}%)\n"
        f"→ {one.looks_like or 'itself'}"
        for one in first
    ]
    title = "Most often taken for another class: image, label (how often), what it looks like"
    draw_sheet(pictures, captions, path, title)


def _read_truth(path: Path, names: Sequence[str]) -> dict[str, str]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        found = {row["image"]: row["class"] for row in rows}
    except FileNotFoundError:
        raise DertsError(f"no file at {path}: check the path") from None
    except (KeyError, UnicodeDecodeError, csv.Error):
        raise DertsError(f"{path} is no CSV with columns image and class: write it so") from None
    unknown = sorted(found.keys() - set(names))
    if unknown:
        raise DertsError(
            f"{path} names {unknown[0]!r}, which is no image here ({len(unknown)} unknown): use "
            "the names of images.csv"
        )
    return found
