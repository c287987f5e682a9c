"""Stage 1: images or features with labels, from any source to a Table.

open_data       glyphs or a prepared store, as tables by split
prepare         any images on disk -> a store; find_source says which kind it is
prepare_matrix  any matrix of features with labels -> a store; read_matrix reads the file alone
open_store, verify_store, describe_store, item_names, save_table
from_dataset    any torch or Hugging Face dataset -> an ImageTable
glyphs          the built-in data: letters and digits in twelve fonts
with_rotated_classes  four classes for every one: upright and rotated
"""

from derts.data.dataset import from_dataset
from derts.data.glyphs import glyphs
from derts.data.matrices import prepare_matrix, read_matrix
from derts.data.prepare import Prepared, find_source, open_data, prepare
from derts.data.store import (
    StoreDescription,
    data_fingerprint,
    describe_store,
    item_names,
    open_store,
    verify_store,
)
from derts.data.store_writing import save_table
from derts.data.table import FeatureTable, ImageTable, Table, with_rotated_classes

__all__ = [
    "FeatureTable",
    "ImageTable",
    "Prepared",
    "StoreDescription",
    "Table",
    "data_fingerprint",
    "describe_store",
    "find_source",
    "from_dataset",
    "glyphs",
    "item_names",
    "open_data",
    "open_store",
    "prepare",
    "prepare_matrix",
    "read_matrix",
    "save_table",
    "verify_store",
    "with_rotated_classes",
]
