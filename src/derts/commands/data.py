"""derts data prepare, embed, info, verify"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from derts.commands.parse import parse, unset
from derts.errors import DertsError, printable

INFO = """Show what a store holds: splits, classes, images, size on disk.

Examples:
  derts data info my-store
"""
VERIFY = """Read every array and the names of a store and compare them with their checksums.

Examples:
  derts data verify my-store
"""


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
class EmbedOptions:
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
    quiet: bool = False
    """No progress, just the result."""


@dataclass(frozen=True)
class StoreOptions:
    """The one argument of `derts data info` and `derts data verify`."""

    store: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="STORE")]
    """A folder that derts data prepare wrote."""


def prepare(arguments: Sequence[str]) -> None:
    """Parse, prepare, print."""
    options = parse(PrepareOptions, arguments, "data prepare")

    from derts.data import prepare as make
    from derts.data import prepare_matrix
    from derts.data.matrices import is_matrix
    from derts.progress import progress

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
    _show(options.destination)
    for note in notes:
        print(printable(note))


def embed(arguments: Sequence[str]) -> None:
    """Parse, embed, print."""
    options = parse(EmbedOptions, arguments, "data embed")

    from derts.embed import embed_store
    from derts.progress import progress, silent

    values = asdict(options)
    shown = silent if values.pop("quiet") else progress
    embed_store(values.pop("store"), **values, progress=shown)
    _show(options.destination)


def info(arguments: Sequence[str]) -> None:
    """Parse and print."""
    store = parse(StoreOptions, arguments, "data info", INFO).store

    from derts.data import open_store

    open_store(store)  # half of a store is none
    _show(store)


def verify(arguments: Sequence[str]) -> None:
    """Parse, verify, print."""
    store = parse(StoreOptions, arguments, "data verify", VERIFY).store

    from derts.data import verify_store
    from derts.progress import progress

    verify_store(store, progress)
    print(f"{store}: every array and name is as it was written")


def _show(store: Path) -> None:
    from derts.data import describe_store

    print("\n".join(describe_store(store).lines()))
