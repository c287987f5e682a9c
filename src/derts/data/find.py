"""Which kind of source a folder is, found out by looking."""

from __future__ import annotations

from pathlib import Path

from derts.data import folders, mini_imagenet, tiered_imagenet
from derts.data.source import Source
from derts.errors import DertsError

_ACCEPTED = (
    "train/ val/ test/ with a folder per class; one folder of class folders; mini-ImageNet as "
    "images/ with train.csv, as mini-imagenet-cache-train.pkl or as train_0.npz packs; "
    "tiered-ImageNet as train_images_png.pkl or train_images.npz with train_labels.pkl"
)


def find_source(path: Path | str) -> Source:
    """The source that a folder holds; its kind is found by looking.

    >>> find_source("no/such/folder")
    Traceback (most recent call last):
    derts.errors.DertsError: no/such/folder does not exist: give the folder of a data set
    """
    path = Path(path)
    if not path.exists():
        raise DertsError(f"{path} does not exist: give the folder of a data set")
    if not path.is_dir():
        raise DertsError(f"{path} is a file: unpack it if it is an archive, and give the folder")
    if (path / "store.json").is_file():
        raise DertsError(f"{path} is a prepared store already: use it as it is")
    try:
        for detect in (mini_imagenet.detect, tiered_imagenet.detect, folders.detect):
            source = detect(path)
            if source is not None:
                return source
    except PermissionError as error:
        raise DertsError(f"{error.filename} may not be read: change its permissions") from error
    raise DertsError(f"{path} holds no data set that is known; expected one of: {_ACCEPTED}")
