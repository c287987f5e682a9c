"""derts inspect"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from derts.commands.parse import csv_bytes, parse, print_rows, print_table, unset
from derts.errors import DertsError

if TYPE_CHECKING:
    from derts.data.table import ImageTable
    from derts.labels.inspection import Suspect

DESCRIPTION = """Which classes and images look mislabelled? For somebody who cleans a data set.

Embeds every image of a split with the run's model and compares it with the mean of its own class
(without it) and with the nearest mean of another class. Writes images.csv, classes.csv and
images.png (the first hundred) into RUN/inspect (RUN/inspect-val for --split val), the most
suspicious first. With --truth it says how many of the first hundred really are mislabelled.

Examples:
  derts inspect runs/first
  derts inspect runs/first --split val --out suspects
  derts inspect runs/first --truth truth.csv
"""
FIRST = 100  # images that are drawn, and counted against the truth
OVERFIT = 0.002  # share of suspicious images below which the model has probably overfitted


@dataclass(frozen=True)
class InspectOptions:
    """Options of `derts inspect`."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A folder that derts train wrote."""
    split: str = "train"
    """Which split to look at."""
    truth: Annotated[Path | None, unset("FILE")] = None
    """A CSV with columns image (name or number, as in images.csv) and class (the true one)."""
    data: Annotated[str | None, unset("DATA")] = None
    """Other data than the run was trained on."""
    out: Annotated[Path | None, unset("FOLDER")] = None
    """Folder to write (default: RUN/inspect, or RUN/inspect-SPLIT)."""
    quiet: bool = False
    """No progress, just the result."""


def inspect(arguments: Sequence[str]) -> None:
    """Parse, embed, rank, write."""
    options = parse(InspectOptions, arguments, "inspect", DESCRIPTION)

    from derts.data import image_names, open_data
    from derts.files import write_atomically
    from derts.labels.inspection import image_features, rank_classes, rank_images
    from derts.progress import progress
    from derts.training.run import open_trainer
    from derts.training.run_folder import Run

    run = Run.open(options.run)
    data = options.data or run.config.data
    trainer = open_trainer(options.run, open_data(data))
    images = trainer.split(options.split)
    names = image_names(data, options.split) or [str(number) for number in range(len(images))]
    truth = None if options.truth is None else _read_truth(options.truth, names)
    with progress("inspecting", len(images), "images", quiet=options.quiet) as advance:
        features = image_features(trainer.learner, images, advance)
    suspects = rank_images(features, images)
    rows = [("class", "looks like", "images", "look mislabelled", "margin")]
    rows += [
        (one.class_name, one.looks_like, str(one.images),
         f"{100 * one.suspicious:.1f}%", f"{one.margin:.3f}")
        for one in rank_classes(suspects)
    ]  # fmt: skip
    listed = [
        (names[one.index], one.class_name, one.looks_like, f"{one.margin:.4f}") for one in suspects
    ]
    out = options.out or run.path / (
        "inspect" if options.split == "train" else f"inspect-{options.split}"
    )
    out.mkdir(parents=True, exist_ok=True)
    heading = ("image", "class", "looks like", "margin")
    write_atomically(out / "images.csv", csv_bytes([heading, *listed]))
    write_atomically(out / "classes.csv", csv_bytes(rows))
    _draw_suspects(images, suspects[:FIRST], names, out / "images.png")
    print_table(rows[:11])
    print()
    for note in _notes(suspects, len(images), names, truth):
        print(note)
    print_rows(
        [
            ("images", f"{out / 'images.csv'}, {out / 'images.png'}"),
            ("classes", str(out / "classes.csv")),
        ]
    )


def _notes(
    suspects: Sequence[Suspect], images: int, names: Sequence[str], truth: dict[str, str] | None
) -> list[str]:
    notes = []
    if truth is not None:
        wrong = [one.class_name != truth.get(names[one.index], one.class_name) for one in suspects]
        first = len(wrong[:FIRST])
        notes.append(
            f"of the first {first} images, {sum(wrong[:FIRST])} really are mislabelled "
            f"({first * sum(wrong) / max(1, len(wrong)):.0f} by chance)"
        )
    if len(suspects) < images:
        notes.append(f"{images - len(suspects)} images are alone in their class: not judged")
    if sum(one.margin > 0 for one in suspects) < OVERFIT * len(suspects):
        notes.append(
            "hardly an image looks mislabelled: the model may have overfitted this split; look at "
            "another (--split val), or train for fewer updates"
        )
    return notes


def _draw_suspects(
    images: ImageTable, suspects: Sequence[Suspect], names: Sequence[str], path: Path
) -> None:
    import torch

    from derts.report.pictures import draw_sheet, to_picture

    shown = images.gather(torch.tensor([one.index for one in suspects]))
    draw_sheet(
        [to_picture(pixels) for pixels in shown],
        [
            f"{Path(names[one.index]).name}\n{one.class_name}\n→ {one.looks_like}"
            for one in suspects
        ],
        path,
        "Most suspicious first: image, its class, the other class that it looks like",
    )


def _read_truth(path: Path, names: Sequence[str]) -> dict[str, str]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            found = {row["image"]: row["class"] for row in csv.DictReader(file)}
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
