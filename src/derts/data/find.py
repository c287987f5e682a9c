"""What a name or a folder is: the built-in glyphs, a prepared store, or a known data set."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from derts.data import folders, imagenet
from derts.data.glyphs import glyphs
from derts.data.sources import Source
from derts.data.store import open_store
from derts.data.table import ImageTable
from derts.errors import DertsError

_ACCEPTED = (
    "train/ val/ test/ with a folder per class; one folder of class folders; mini-ImageNet as "
    "images/ with train.csv, as mini-imagenet-cache-train.pkl or as train_0.npz packs; "
    "tiered-ImageNet as train_images_png.pkl or train_images.npz with train_labels.pkl, or as "
    "train.npz packs"
)


def open_data(
    source: str | Path, *, device: torch.device | str | None = None
) -> dict[str, ImageTable]:
    """The splits of "glyphs" or of a prepared store, their images moved to `device` if given.

    "glyphs-120x20" are 120 of the characters with 20 images each. A store's images uint8
    [n, height, width, channels] stay on disk unless a device is given.

    >>> open_data("no-such-store")
    Traceback (most recent call last):
    derts.errors.DertsError: no-such-store does not exist: ... or "glyphs"
    """
    sizes = re.fullmatch(r"glyphs-(\d+)x(\d+)", str(source))
    if source == "glyphs":
        tables = glyphs()
    elif sizes and not Path(source).exists():
        tables = glyphs(characters=int(sizes[1]), images_per_character=int(sizes[2]))
    elif (Path(source) / "store.json").is_file():
        tables = open_store(source)
    elif not Path(source).exists():
        fix = 'give the folder of a prepared store, or "glyphs"'
        raise DertsError(f"{source} does not exist: {fix}")
    else:
        kind = find_source(source).kind
        raise DertsError(
            f"{source} is a data set that is not prepared yet ({kind}): "
            f"run derts data prepare {source} DEST first, and open DEST"
        )
    return {s: table if device is None else table.to(device) for s, table in tables.items()}


def find_source(path: Path | str) -> Source:
    """The source that a folder holds; its kind is found by looking."""
    path = Path(path)
    if not path.exists():
        raise DertsError(f"{path} does not exist: give the folder of a data set")
    if not path.is_dir():
        raise DertsError(f"{path} is a file: unpack it if it is an archive, and give the folder")
    if (path / "store.json").is_file():
        raise DertsError(f"{path} is a prepared store already: use it as it is")
    try:
        source = imagenet.detect(path) or folders.detect(path)
    except PermissionError as error:
        raise DertsError(f"{error.filename} may not be read: change its permissions") from error
    if source is None:
        raise DertsError(f"{path} holds no data set that is known; expected one of: {_ACCEPTED}")
    return source
