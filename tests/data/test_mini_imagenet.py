"""mini-ImageNet as pickles and as csv lists, made small here."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from derts.data import find_source, open_store, prepare
from derts.errors import DertsError

SPLITS = {"train": "abc", "val": "de", "test": "fg"}
COUNT = 3


def pixels(split: str) -> NDArray[np.uint8]:
    random = np.random.default_rng(len(split))
    return random.integers(0, 256, (COUNT * len(SPLITS[split]), 84, 84, 3), dtype=np.uint8)


def check_store(source: Path, destination: Path) -> None:
    prepare(source, destination)
    tables = open_store(destination)
    assert set(tables) == set(SPLITS)
    for split, table in tables.items():
        assert table.class_names == tuple(SPLITS[split])
        assert table.labels.tolist() == np.repeat(np.arange(len(SPLITS[split])), COUNT).tolist()
        np.testing.assert_array_equal(table.items.numpy(), pixels(split))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_cache_pickles(tmp_path: Path, protocol: int) -> None:
    for split, names in SPLITS.items():
        class_dict = {
            name: list(range(COUNT * number, COUNT * (number + 1)))
            for number, name in enumerate(names)
        }
        content = {"image_data": pixels(split), "class_dict": class_dict}
        path = tmp_path / f"mini-imagenet-cache-{split}.pkl"
        path.write_bytes(pickle.dumps(content, protocol=protocol))
    assert find_source(tmp_path).kind == "mini-ImageNet pickles"
    check_store(tmp_path, tmp_path / "store")


@pytest.mark.parametrize("with_names", [True, False])
def test_data_and_labels_pickle(tmp_path: Path, with_names: bool) -> None:
    content: dict[Any, Any] = {b"data": pixels("val"), b"labels": [64] * COUNT + [65] * COUNT}
    if with_names:
        content[b"catname2label"] = {"d": 64, "e": 65}
    path = tmp_path / "miniImageNet_category_split_val.pickle"
    path.write_bytes(pickle.dumps(content))
    prepare(tmp_path, tmp_path / "store")
    names = open_store(tmp_path / "store")["val"].class_names
    assert names == (("d", "e") if with_names else ("64", "65"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "no dictionary"),
        ({"image_data": np.zeros((2, 84, 84, 3), np.uint8)}, "must hold image_data with"),
        ({"data": np.zeros((2, 84, 84, 3), np.uint8), "labels": [1]}, "2 images but 1 labels"),
        ({"data": np.zeros((2, 84, 84, 3)), "labels": [1, 1]}, "not uint8"),
        ({"image_data": np.zeros((2, 9, 9, 3), np.uint8), "class_dict": {"a": [0]}}, "no class"),
        ({"image_data": np.zeros((2, 9, 9, 3), np.uint8), "class_dict": {"a": [9]}}, "image 9"),
        ({"image_data": np.zeros((2, 9, 9, 3), np.uint8), "class_dict": {"a": 1}}, "for a list"),
    ],
)
def test_odd_pickles(tmp_path: Path, content: Any, message: str) -> None:
    (tmp_path / "mini-imagenet-cache-val.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(DertsError, match=message):
        prepare(tmp_path, tmp_path / "store")


def test_pickles_larger_than_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mini-imagenet-cache-val.pkl").write_bytes(b"x" * 2000)
    monkeypatch.setattr("derts.data.sources.free_memory", lambda device: 1600)
    with pytest.raises(DertsError, match=r"GB of arrays do not fit .* on a larger machine"):
        prepare(tmp_path, tmp_path / "store")


def write_csv(folder: Path) -> None:
    (folder / "images").mkdir()
    for split, names in SPLITS.items():
        lines = ["filename,label"]
        for number, image in enumerate(pixels(split)):
            Image.fromarray(image).save(folder / "images" / f"{split}{number}.png")
            lines.append(f"{split}{number}.png,{names[number // COUNT]}")
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")


def test_csv(tmp_path: Path) -> None:
    write_csv(tmp_path)
    check_store(tmp_path, tmp_path / "store")


def test_csv_with_missing_images_or_without_header(tmp_path: Path) -> None:
    write_csv(tmp_path)
    (tmp_path / "images" / "val3.png").unlink()
    with pytest.raises(DertsError, match=r"1 of 6 images .* the first is 'val3.png'"):
        prepare(tmp_path, tmp_path / "store")
    (tmp_path / "val.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DertsError, match="header filename,label"):
        prepare(tmp_path, tmp_path / "store")
