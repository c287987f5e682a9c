"""Open data by name: the built-in glyphs, or the folder of a prepared store."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from derts.data.find import find_source
from derts.data.glyph_data import glyphs
from derts.data.store import open_store
from derts.data.table import ImageTable
from derts.errors import DertsError


def open_data(
    source: str | Path, *, device: torch.device | str | None = None
) -> dict[str, ImageTable]:
    """The splits of "glyphs" or of a prepared store, their images moved to `device` if given.

    "glyphs-120x20" are 120 of the characters with 20 images each.

    A store's images uint8 [n, height, width, channels] stay on disk unless a device is given.

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
        raise DertsError(
            f'{source} does not exist: give the folder of a prepared store, or "glyphs"'
        )
    else:
        kind = find_source(source).kind
        raise DertsError(
            f"{source} is a data set that is not prepared yet ({kind}): "
            f"run derts data prepare {source} DEST first, and open DEST"
        )
    if device is None:
        return tables
    return {split: table.to(device) for split, table in tables.items()}
