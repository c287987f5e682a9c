"""Tables and stores of features: what is written comes back, and what is wrong is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from derts.data import FeatureTable, describe_store, item_names, open_store, save_table
from derts.data.store import verify_store
from derts.data.store_writing import SplitContent, write_store
from derts.data.streaming import StreamedTable
from derts.errors import DertsError


def table() -> FeatureTable:
    return FeatureTable(torch.arange(24.0).reshape(6, 4), torch.arange(6) % 2, ("a", "b"))


def test_a_store_of_features_round_trips_on_disk(tmp_path: Path) -> None:
    save_table({"train": table(), "val": table()}, tmp_path / "store")
    found = open_store(tmp_path / "store")["val"]
    assert isinstance(found, FeatureTable)
    assert torch.equal(found.features, table().features)
    assert (found.item_shape, found.noun, found.class_names) == ((4,), "row", ("a", "b"))
    assert (
        "train: 6 rows of 4 features, 2 classes of 3" in describe_store(tmp_path / "store").lines()
    )
    assert describe_store(tmp_path / "store").kind == "features"
    assert np.load(tmp_path / "store" / "train.npy", mmap_mode="r").dtype == np.float32
    assert verify_store(tmp_path / "store").bytes == 2 * 6 * 4 * 4


def test_blocks_with_names_are_written_as_they_come(tmp_path: Path) -> None:
    names = [f"text {n}" for n in range(6)]
    blocks, labels = table().features.split(4), table().labels
    content = SplitContent(blocks, (4,), labels, ("a", "b"), names=names)
    write_store({"test": content}, tmp_path / "store", {"kind": "features", "name": "x"})
    assert item_names(tmp_path / "store", "test") == names
    assert torch.equal(open_store(tmp_path / "store")["test"].items, table().features)


def test_a_store_whose_kind_and_shapes_differ_is_damaged(tmp_path: Path) -> None:
    save_table({"train": table()}, tmp_path / "store")
    path = tmp_path / "store" / "store.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"kind": "images"}))
    with pytest.raises(DertsError, match="split 'train' of features"):
        open_store(tmp_path / "store")


def test_what_is_no_table_of_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DertsError, match="float32"):
        FeatureTable(torch.zeros(2, 3).double(), torch.tensor([0, 1]), ("a", "b"))
    with pytest.raises(DertsError, match="one label per row"):
        FeatureTable(torch.zeros(2, 3), torch.tensor([0]), ("a", "b"))
    bad = FeatureTable(torch.full((2, 3), torch.nan), torch.tensor([0, 1]), ("a", "b"))
    with pytest.raises(DertsError, match="not all finite"):
        save_table({"train": bad}, tmp_path / "store")
    assert not list(tmp_path.iterdir())


def test_streamed_rows_are_the_same_rows() -> None:
    streamed = StreamedTable.of(table(), torch.device("cpu"))
    indices = torch.tensor([[5, 0], [1, 1]])
    streamed.prefetch(indices)
    assert torch.equal(streamed.gather(indices), table().gather(indices))
