"""Packs of encoded images in .npz files, made small here, and the real ones where they are."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from derts.data import find_source, open_store, prepare, verify_store
from derts.errors import DertsError

SPLITS = {"train": "abc", "val": "de", "test": "fg"}
COUNT = 3
Encode = Callable[..., bytes]
WritePacks = Callable[..., Path]


def pixels(split: str) -> NDArray[np.uint8]:
    random = np.random.default_rng(len(split))
    return random.integers(0, 256, (COUNT * len(SPLITS[split]), 12, 12, 3), dtype=np.uint8)


@pytest.fixture
def write_packs(encoded: Encode, tmp_path: Path) -> WritePacks:
    """Writes the packs of three splits into a folder; `changes` are of the arrays of val."""

    def write(folder: str, save: Any = np.savez, train_parts: int = 2, **changes: Any) -> Path:
        (tmp_path / folder).mkdir(parents=True)
        for split, names in SPLITS.items():
            files = [encoded(image) for image in pixels(split)]
            labels = np.repeat(np.arange(len(names), dtype=np.int32), COUNT)
            parts = np.array_split(np.arange(len(files)), train_parts if split == "train" else 1)
            for number, part in enumerate(parts):
                held = [files[index] for index in part]
                arrays: dict[str, Any] = {
                    "data": np.frombuffer(b"".join(held), np.uint8),
                    "offsets": np.cumsum([0, *map(len, held)]),
                    "labels": labels[part],
                    "class_names": np.array(list(names)),
                    "filenames": np.array([b"x"] * len(held)),
                }
                if "tiered" in folder:
                    arrays["categories"] = np.array([f"all but {name}" for name in names])
                arrays.update(changes if split == "val" else {})
                name = f"{split}.npz" if len(parts) == 1 else f"{split}_{number}.npz"
                save(tmp_path / folder / name, **arrays)
        return tmp_path / folder

    return write


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("name", ["mini-imagenet", "tiered-imagenet-64"])
@pytest.mark.parametrize("at_parent", [True, False])
def test_packs(
    name: str, save: Any, at_parent: bool, write_packs: WritePacks, tmp_path: Path
) -> None:
    folder = write_packs(f"data/{name}", save, train_parts=2 if name == "mini-imagenet" else 1)
    source = folder.parent if at_parent else folder
    is_tiered = name != "mini-imagenet"
    assert find_source(source).kind == f"{'tiered' if is_tiered else 'mini'}-ImageNet packs"
    prepare(source, tmp_path / "store", size=12)
    assert not (tmp_path / "store" / "scratch").exists()
    for split, table in open_store(tmp_path / "store").items():
        names = SPLITS[split]
        assert table.class_names == tuple(names)
        assert table.labels.tolist() == np.repeat(np.arange(len(names)), COUNT).tolist()
        assert table.categories == (tuple(f"all but {n}" for n in names) if is_tiered else None)
        np.testing.assert_array_equal(table.items.numpy(), pixels(split))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.array([7] * 6)}, "out of range"),
        ({"labels": np.array([0.5] * 6)}, "out of range"),
        ({"offsets": np.array([0, 5, 3, 4, 5, 6, 7])}, "out of range"),
        ({"offsets": np.array(0)}, "out of range"),
        ({"class_names": np.array("de")}, "out of range"),
        ({"labels": np.array([0, 1])}, "out of range or number"),
        ({"class_names": np.array([{}], dtype=object)}, "no readable .npz"),
        ({"data": np.array([{}], dtype=object)}, "no readable .npz"),
        ({"categories": np.array(["one"])}, "no category for every class"),
    ],
)
def test_damaged_packs(
    changes: dict[str, NDArray[Any]], message: str, write_packs: WritePacks, tmp_path: Path
) -> None:
    with pytest.raises(DertsError, match=message):
        prepare(write_packs("packs", **changes), tmp_path / "store")


def test_no_archive(tmp_path: Path) -> None:
    (tmp_path / "val.npz").write_bytes(b"PK no")
    with pytest.raises(DertsError, match=r"no readable \.npz"):
        prepare(tmp_path, tmp_path / "store")
    np.savez(tmp_path / "val.npz", other=np.zeros(2))
    with pytest.raises(DertsError, match="no array 'data', only other"):
        prepare(tmp_path, tmp_path / "store")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "images", "classes", "side", "categories"),
    [("mini-imagenet", 9600, 16, 84, None), ("tiered-imagenet-64", 5100, 17, 64, 6)],
)
def test_real_validation_packs(
    name: str,
    images: int,
    classes: int,
    side: int,
    categories: int | None,
    shared_data: Path,
    tmp_path: Path,
) -> None:
    pack_file = shared_data / name / "val.npz"
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "val.npz").symlink_to(pack_file)
    prepare(tmp_path / "source", tmp_path / "store", size=side, workers=2)
    verify_store(tmp_path / "store")
    table = open_store(tmp_path / "store")["val"]
    assert (len(table), len(table.class_names)) == (images, classes)
    assert table.item_shape == (side, side, 3)
    assert (table.categories and len(set(table.categories))) == categories
    with np.load(pack_file, allow_pickle=False) as pack:
        start, stop = pack["offsets"][5000:5002]
        image = Image.open(io.BytesIO(pack["data"][start:stop].tobytes())).convert("RGB")
        name = pack["class_names"][pack["labels"][5000]]
    np.testing.assert_array_equal(table.items[5000].numpy(), np.asarray(image))
    assert table.class_names[int(table.labels[5000])] == name


def test_whole_set_is_found_from_the_parent_folder(shared_data: Path) -> None:
    assert find_source(shared_data).kind == "mini-ImageNet packs"
    assert find_source(shared_data / "tiered-imagenet-64").kind == "tiered-ImageNet packs"
