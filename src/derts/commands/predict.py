"""derts predict"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from derts.commands.parse import parse, print_rows
from derts.errors import DertsError

DESCRIPTION = """Label images by a few examples of classes that the model has never seen.

SUPPORT holds a folder per class with a few images each; QUERY holds unlabelled images. MODEL is a
folder that derts train wrote, or a file that derts export wrote. ProtoNet takes any number of
classes, ANIL and MAML as many as they were trained for; all take any number of images per class.

Examples:
  derts predict runs/first --support my-examples --query inbox
  derts predict model.safetensors --support my-examples --query inbox --out labels.csv
"""


@dataclass(frozen=True)
class PredictOptions:
    """Options of `derts predict`."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A run folder, or an exported model."""
    support: Path
    """A folder with a folder of images per class."""
    query: Path
    """A folder of images to label."""
    out: Path = Path("predictions.csv")
    """The table to write; a picture sheet goes beside it."""


def predict(arguments: Sequence[str]) -> None:
    """Parse, adapt, predict, write."""
    options = parse(PredictOptions, arguments, "predict", DESCRIPTION)
    if options.out.suffix.lower() == ".png":
        raise DertsError(f"--out {options.out} is where the picture sheet goes: name it .csv")

    from PIL import Image

    from derts.files import write_atomically
    from derts.predict import load_model
    from derts.report.sheet import MOST, draw_sheet

    model = load_model(options.model)
    classifier = model.adapt(options.support)
    found = classifier.predict(options.query)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("image", "label", "probability", *classifier.class_names))
    for one in found:
        shares = [f"{share:.4f}" for share in one.probabilities.values()]
        table.writerow((one.name, one.label, f"{one.probability:.4f}", *shares))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out, text.getvalue().encode())
    sheet = options.out.with_suffix(".png")
    pictures = [
        Image.fromarray(model.pixels(options.query / one.name).numpy().squeeze(-1))
        if model.channels == 1
        else Image.fromarray(model.pixels(options.query / one.name).numpy())
        for one in found[:MOST]
    ]
    captions = [f"{one.label} {100 * one.probability:.0f}%\n{one.name}" for one in found[:MOST]]
    draw_sheet(pictures, captions, sheet, f"{len(found)} images labelled")
    for name in classifier.class_names:
        print(f"{sum(one.label == name for one in found):6d}  {name}")
    print_rows([("labels", str(options.out)), ("pictures", str(sheet))])
