"""Stage 1: images and labels, from any source to an ImageTable.

open_data       glyphs or a prepared store, as ImageTables by split
prepare         any data set on disk -> a store; find_source says which kind it is
open_store, verify_store, describe_store, image_names, save_table
from_dataset    any torch Dataset -> an ImageTable
glyphs          the built-in data: letters and digits in twelve fonts
with_rotated_classes  four classes for every one: upright and turned
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from derts.data.dataset import from_dataset
    from derts.data.find import find_source
    from derts.data.glyph_data import glyphs
    from derts.data.open import open_data
    from derts.data.preparation import Prepared, prepare
    from derts.data.rotated import with_rotated_classes
    from derts.data.store import (
        StoreDescription,
        describe_store,
        image_names,
        open_store,
        verify_store,
    )
    from derts.data.table import ImageTable
    from derts.data.write import save_table

__all__ = [
    "ImageTable",
    "Prepared",
    "StoreDescription",
    "describe_store",
    "find_source",
    "from_dataset",
    "glyphs",
    "image_names",
    "open_data",
    "open_store",
    "prepare",
    "save_table",
    "verify_store",
    "with_rotated_classes",
]

_HOMES = {
    "ImageTable": "table",
    "Prepared": "preparation",
    "StoreDescription": "store",
    "describe_store": "store",
    "find_source": "find",
    "from_dataset": "dataset",
    "glyphs": "glyph_data",
    "image_names": "store",
    "open_data": "open",
    "open_store": "store",
    "prepare": "preparation",
    "save_table": "write",
    "verify_store": "store",
    "with_rotated_classes": "rotated",
}


def __getattr__(name: str) -> Any:
    # On demand: worker processes decode images without waiting for torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
