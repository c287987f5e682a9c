"""derts data prepare, embed, corrupt, info, verify"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from derts.commands.parse import QuietOptions, unset
from derts.errors import DertsError, printable
from derts.progress import progress


@dataclass(frozen=True)
class PrepareOptions:
    """Make a store that opens at once: of a data set's images, decoded once, or of features.

    SOURCE is found out by looking: folders of classes (with or without train/ val/ test/),
    mini-ImageNet (images/ with CSVs, the cache pickles), tiered-ImageNet (pickles, npz), and .npz
    packs of JPEG files of either. A .npz (arrays features and labels), .npy (with --labels) or
    .parquet file is a matrix of features.
    An interrupted run continues where it stopped.

    Examples:
      derts data prepare my-photos my-store --size 84
      derts data prepare my-photos my-store --min-images 20 --skip-broken
      derts data prepare downloads/mini-imagenet mini
      derts data prepare features.npy my-features --labels labels.csv
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """A data set on disk."""
    destination: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DEST")]
    """Folder to write."""
    size: int = 84
    """Side of the square images."""
    grayscale: bool = False
    """One channel instead of three."""
    workers: int = 0
    """Threads that decode (0: one per core, at most 16)."""
    skip_broken: bool = False
    """Leave out images that cannot be read instead of stopping."""
    overwrite: bool = False
    """Replace a store that is already there."""
    seed: int = 0
    """Decides the split of the classes where the source has none."""
    min_images: int = 1
    """Leave out classes with fewer images (a task needs shot + query of each class)."""
    class_level: Annotated[int, unset("INT")] = 0
    """How many folders down a class is: 2 for SOURCE/animals/cat (default: 1, if that is clear)."""
    split_fractions: tuple[float, float, float] = (0.64, 0.16, 0.20)
    """Shares of the classes for train, val and test where the source has no split."""
    labels: Annotated[Path | None, unset("FILE")] = None
    """The labels of an .npy of features, a line each (default: labels.csv beside it)."""


@dataclass(frozen=True)
class EmbedOptions(QuietOptions):
    """Embed a store's images once by a pretrained backbone, and write a store of features.

    DEST goes wherever a store goes. derts train --data DEST --model.backbone linear trains a head
    on it in seconds; derts predict then takes photos, as the store remembers what embedded it.

    Examples:
      derts data prepare my-photos my-store --size 224
      derts data embed my-store my-features --model.backbone efficientnet-lite0
      derts data embed my-store my-features --model.backbone timm:resnet18 --model.weights r18.pth
    """

    store: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STORE")]
    """A folder that derts data prepare wrote."""
    destination: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DEST")]
    """Folder to write."""
    backbone: Annotated[str, tyro.conf.arg(name="model.backbone", metavar="NAME")] = (
        "efficientnet-lite0"
    )
    """efficientnet-lite0 or timm:NAME."""
    weights: Annotated[str, tyro.conf.arg(name="model.weights", metavar="FILE")] = ""
    """timm:NAME: a safetensors file or state dict, or download: timm's own."""
    device: Annotated[str, tyro.conf.arg(name="hardware.device")] = "auto"
    """auto, cpu, cuda, …"""
    overwrite: bool = False
    """Replace a store that is already there."""


@dataclass(frozen=True)
class CorruptOptions:
    """Write a store with known wrong labels in its training split, to try what finds them.

    symmetric: any other class. pair: the next class. confusion:FILE: a CSV with columns class,
    given and share (of the class's images). The true labels lie in DEST/true_labels.npy, which only
    scoring reads (derts inspect RUN --score).

    Examples:
      derts data corrupt my-store wrong-store --noise symmetric --rate 0.2
      derts data corrupt glyphs wrong-glyphs --noise pair --rate 0.4 --seed 1
    """

    store: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STORE")]
    """A folder that derts data prepare wrote, or glyphs."""
    destination: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DEST")]
    """Folder to write."""
    noise: Annotated[str, tyro.conf.arg(metavar="KIND")] = "symmetric"
    """symmetric, pair or confusion:FILE."""
    rate: Annotated[float | None, unset("SHARE")] = None
    """Share of the labels that are wrong (confusion: as in FILE if left out)."""
    seed: int = 0
    """Decides which labels are wrong."""
    overwrite: bool = False
    """Replace a store that is already there."""


@dataclass(frozen=True)
class InfoOptions:
    """Show what a store holds: splits, classes, images, size on disk.

    Examples:
      derts data info my-store
    """

    store: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="STORE")]
    """A folder that derts data prepare wrote."""


@dataclass(frozen=True)
class VerifyOptions(InfoOptions):
    """Read every array and the names of a store and compare them with their checksums.

    Examples:
      derts data verify my-store
    """


def prepare(options: PrepareOptions) -> None:
    from derts.data import prepare as make
    from derts.data import prepare_matrix
    from derts.data.matrices import is_matrix

    if is_matrix(options.source):
        notes: Sequence[str] = prepare_matrix(
            options.source, options.destination, labels=options.labels, progress=progress,
            overwrite=options.overwrite, seed=options.seed, min_rows=options.min_images,
            split_fractions=options.split_fractions,
        )[1]  # fmt: skip
    elif options.labels is not None:
        raise DertsError("--labels is for an .npy of features: folders are labels themselves")
    else:
        values = asdict(options)
        del values["labels"]
        notes = make(**values, progress=progress).notes
    info(InfoOptions(options.destination))
    for note in notes:
        print(printable(note))


def embed(options: EmbedOptions) -> None:
    from derts.embed import embed_store

    values = asdict(options)
    del values["quiet"]
    embed_store(values.pop("store"), **values, progress=options.progress)
    info(InfoOptions(options.destination))


def corrupt(options: CorruptOptions) -> None:
    from derts.data import open_data
    from derts.labels.judging import chosen_splits
    from derts.labels.known_errors import confusion_matrix, corrupt_labels, corrupt_store

    tables = open_data(options.store)
    images = chosen_splits(tables, "train")["train"]
    confusion = confusion_matrix(options.noise, options.rate, images.class_names)
    given = corrupt_labels(images.labels, confusion, options.seed)
    made = corrupt_store(
        tables, options.store, options.destination, given, overwrite=options.overwrite
    )
    wrong = int((given != images.labels).sum())
    print("\n".join(made.lines()))
    print(f"wrong labels: {wrong:,} of {len(images):,} training {images.noun}s")


def info(options: InfoOptions) -> None:
    from derts.data import describe_store, open_store

    open_store(options.store)  # half of a store is none
    print("\n".join(describe_store(options.store).lines()))


def verify(options: VerifyOptions) -> None:
    from derts.data import verify_store

    verify_store(options.store, progress)
    print(printable(f"{options.store}: every array and name is as it was written"))
