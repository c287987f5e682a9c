"""What a path holds: a prepared store, which is opened, or a data set to prepare."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch

from derts.data import folders, imagenet
from derts.data.glyphs import glyphs
from derts.data.matrices import is_matrix
from derts.data.sources import Source
from derts.data.store import open_store
from derts.data.table import Table
from derts.errors import DertsError
from derts.hardware import choose_device

_ACCEPTED = (
    "train/ val/ test/ with a folder per class; one folder of class folders; mini-ImageNet as "
    "images/ with train.csv, as mini-imagenet-cache-train.pkl or as train_0.npz packs; "
    "tiered-ImageNet as train_images_png.pkl or train_images.npz with train_labels.pkl, or as "
    "train.npz packs; or a .npz, .npy or .parquet file of features"
)


def open_data(source: str | Path, *, device: torch.device | str | None = None) -> dict[str, Table]:
    """The splits of "glyphs" or of a prepared store, its items on disk unless `device` is given.

    "glyphs-120x20" are 120 of the characters with 20 images each.

    >>> open_data("no-such-store")
    Traceback (most recent call last):
    derts.errors.DertsError: no-such-store does not exist: ... or "glyphs"
    """
    sizes = re.fullmatch(r"glyphs-(\d+)x(\d+)", str(source))
    tables: Mapping[str, Table]
    if source == "glyphs":
        tables = glyphs()
    elif sizes and not Path(source).exists():
        tables = glyphs(characters=int(sizes[1]), images_per_character=int(sizes[2]))
    elif (Path(source) / "store.json").is_file():
        tables = open_store(source)
    elif not Path(source).exists():
        raise DertsError(f'{source} does not exist: give a prepared store, or "glyphs"')
    else:
        found = f"{source} is not prepared yet ({find_source(source).kind})"
        raise DertsError(f"{found}: run derts data prepare {source} DEST first, and open DEST")
    place = device and choose_device(str(device), "device")
    return {s: table.to(place) if place else table for s, table in tables.items()}


def find_source(path: Path | str) -> Source:
    """What kind of data set a folder holds."""
    path = Path(path)
    if not path.exists():
        raise DertsError(f"{path} does not exist: give the folder of a data set")
    if not path.is_dir():
        fix = f"run derts data prepare {path} DEST" if is_matrix(path) else "unpack it if need be"
        raise DertsError(f"{path} is a file: {fix}, and give the folder")
    if (path / "store.json").is_file():
        raise DertsError(f"{path} is a prepared store already: use it as it is")
    try:
        source = imagenet.detect(path) or folders.detect(path)
    except PermissionError as error:
        raise DertsError(f"{error.filename} may not be read: change its permissions") from error
    if source is None:
        raise DertsError(f"{path} holds no data set that is known; expected one of: {_ACCEPTED}")
    return source
