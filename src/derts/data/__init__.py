"""Stage 1: images or features with labels, from any source to a Table.

opening            a path -> a Source, or the tables of a store
folders, imagenet  a Source -> its splits, listed (sources)
prepare            a Source -> a store, its images decoded (decode, safe_pickle)
matrices           features with labels -> a store
store              a store -> tables, checked; store_writing makes it whole or not at all
dataset, glyphs    a table without a store
table              what all later stages ask of data
streaming          a table -> on the GPU, or streamed to it
"""

from derts.data.dataset import from_dataset
from derts.data.glyphs import glyphs
from derts.data.matrices import prepare_matrix, read_matrix
from derts.data.opening import find_source, open_data
from derts.data.prepare import Prepared, prepare
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
