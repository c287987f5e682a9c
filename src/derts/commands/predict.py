"""derts predict, derts export"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from derts.commands.parse import QuietOptions, print_rows, unset
from derts.errors import DertsError, printable

if TYPE_CHECKING:
    from derts.predict import LeftOut, Prediction


@dataclass(frozen=True)
class PredictOptions(QuietOptions):
    """Label images by a few examples of classes that the model has never seen.

    SUPPORT holds a folder per class with a few images each; QUERY holds unlabelled images. MODEL is
    a folder that derts train wrote, a file that derts export wrote, or a pretrained backbone, which
    needs no training: efficientnet-lite0 or timm:NAME (derts[pretrained]). ProtoNet and pretrained
    backbones take any number of classes, ANIL and MAML as many as they were trained for; all take
    any number of images of each.

    A model of features takes SUPPORT and QUERY as .npz, .npy or .parquet files of features,
    SUPPORT with labels, or as a store of them.

    Examples:
      derts predict efficientnet-lite0 --support my-examples --query inbox
      derts predict runs/first --support my-examples --query inbox
      derts predict model.safetensors --support my-examples --query inbox --out labels.csv
    """

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A run folder, an exported model, or a pretrained backbone."""
    support: Path
    """A folder with a folder of images per class, or a store (features: a file with labels)."""
    query: Path
    """A folder of images to label (features: a file)."""
    out: Path = Path("predictions.csv")
    """The table to write; a picture sheet goes beside it."""
    skip_broken: bool = False
    """Leave out images that cannot be read instead of stopping."""
    overwrite: bool = False
    """Replace a table or a sheet that is already there."""
    weights: Annotated[str, tyro.conf.arg(name="model.weights", metavar="FILE")] = ""
    """timm:NAME: a safetensors file or state dict, or download: timm's own."""


@dataclass(frozen=True)
class ExportOptions:
    """Write a run's model as one file, with a card of its config, data and results.

    The safetensors file holds weights and card and runs no code when it is loaded; the card lies
    beside it as JSON. derts predict and derts.load_model take the file as they take a run folder.

    An .onnx file holds backbone and prototypes of the classes of --support, for use without derts
    (derts[onnx]): pixels uint8 [n, size, size, channels] in, probabilities [n, classes] out.

    Examples:
      derts export runs/first model.safetensors
      derts export runs/first birds.onnx --support my-examples
      derts export efficientnet-lite0 birds.onnx --support my-examples
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A folder that derts train wrote, or a pretrained backbone."""
    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """The file to write, ending in .safetensors or .onnx."""
    support: Annotated[Path | None, unset("FOLDER")] = None
    """.onnx: a folder with a folder of images per class."""
    weights: Annotated[str, tyro.conf.arg(name="model.weights", metavar="FILE")] = ""
    """timm:NAME: a safetensors file or state dict, or download: timm's own."""


def predict(options: PredictOptions) -> None:
    if options.out.suffix.lower() == ".png":
        raise DertsError(f"--out {options.out} is where the picture sheet goes: name it .csv")
    sheet = options.out.with_suffix(".png")
    there = [path for path in (options.out, sheet) if path.is_file()]
    if there and not options.overwrite:
        raise DertsError(f"{there[0]} already exists: choose another --out or pass --overwrite")

    from derts.data.folders import photographs, unread_note
    from derts.files import csv_bytes, write_atomically
    from derts.model_files import load_model
    from derts.report.pictures import draw_sheet, to_picture

    model = load_model(options.model, options.weights)
    lost: LeftOut = []
    left_out = lost if options.skip_broken else None
    classifier = model.adapt(options.support, left_out=left_out)
    noun = "row" if model.takes_features else "image"
    lines = [csv_bytes([(noun, "label", "probability", *classifier.class_names)])]
    found: list[Prediction] = []
    for one in classifier.stream(options.query, left_out=left_out, progress=options.progress):
        shares = [f"{share:.4f}" for share in (one.probability, *one.probabilities.values())]
        lines.append(csv_bytes([(one.name, one.label, *shares)]))
        found.append(replace(one, probabilities={}))  # of many images they fill the memory
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out, b"".join(lines))
    if not model.takes_features:
        drawn = sheet_images(options.support, options.query, found, lost)
        pictures = [to_picture(model.pixels(image)) for image, _ in drawn]
        title = f"{len(found)} images labelled; examples first, then some of every label"
        draw_sheet(pictures, [caption for _, caption in drawn], sheet, title)
    for name in classifier.class_names:
        print(f"{sum(one.label == name for one in found):6d}  {printable(name)}")
    used = f"{options.model}, pretrained and not trained further"
    print_rows(
        ("model", used if model.card.get("untrained") else options.model),
        ("labels", options.out),
        ("pictures", None if model.takes_features else sheet),
    )
    if lost:
        first = printable(f"{lost[0][0]} ({lost[0][1]})")
        print(f"left out {len(lost):,} broken images, the first is {first}")
    folders = [options.query]
    folders += [] if (options.support / "store.json").is_file() else [options.support]
    if unread := sum((photographs(folder)[1] for folder in folders), Counter()):
        print(unread_note(unread))


def sheet_images(
    support: Path, query: Path, found: Sequence[Prediction], lost: LeftOut
) -> list[tuple[Path, str]]:
    """What the picture sheet shows, with captions: a few examples of each class, then its images.
    Examples that are a store are not shown.

    Every label gets its turn, the most probable of it first.
    """
    from derts.predict import class_folders
    from derts.report.pictures import SHEET_PICTURES

    broken = {str(path) for path, _ in lost}
    is_store = (support / "store.json").is_file()
    examples = {} if is_store else class_folders(support)
    names = list(examples) or sorted({one.label for one in found})
    each = max(1, min(3, SHEET_PICTURES // 3 // max(len(names), 1)))
    shown = [
        (image, f"example: {name}")
        for name, images in examples.items()
        for image in [one for one in images if str(one) not in broken][:each]
    ][: SHEET_PICTURES // 2]
    ranked = sorted(found, key=lambda one: -one.probability)
    turns = zip_longest(*([one for one in ranked if one.label == name] for name in names))
    chosen = [one for turn in turns for one in turn if one][: SHEET_PICTURES - len(shown)]
    return shown + [
        (query / one.name, f"{one.label} {100 * one.probability:.0f}%\n{one.name}")
        for one in sorted(chosen, key=lambda one: names.index(one.label))
    ]


def export(options: ExportOptions) -> None:
    if options.file.suffix not in (".safetensors", ".onnx"):
        raise DertsError(f"{options.file} ends in neither .safetensors nor .onnx: name it so")
    by_onnx = options.file.suffix == ".onnx"
    if by_onnx != (options.support is not None):
        fix = "give --support FOLDER" if by_onnx else "leave out --support"
        raise DertsError(f"an .onnx file, and no other, holds the classes of a folder: {fix}")

    from derts.model_files import load_model

    model = load_model(options.run, options.weights)
    if options.support is not None:
        from derts.onnx_file import save_onnx

        print_rows(("model", save_onnx(model.adapt(options.support), options.file)))
        return
    weights, card = model.save(options.file)
    print_rows(("model", weights), ("card", card))
