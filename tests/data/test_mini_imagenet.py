"""mini-ImageNet in each of its usual forms, made small here, and the real packs where they are."""

from __future__ import annotations

import io
import pickle
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


def pixels(split: str) -> NDArray[np.uint8]:
    random = np.random.default_rng(len(split))
    return random.integers(0, 256, (COUNT * len(SPLITS[split]), 84, 84, 3), dtype=np.uint8)


def check(source: Path, destination: Path, exact: bool = True) -> None:
    prepare(source, destination, workers=1)
    for split, table in open_store(destination).items():
        assert table.class_names == tuple(SPLITS[split])
        assert table.labels.tolist() == np.repeat(np.arange(len(SPLITS[split])), COUNT).tolist()
        if exact:
            np.testing.assert_array_equal(table.images.numpy(), pixels(split))


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
    check(tmp_path, tmp_path / "store")
    assert sorted(path.name for path in (tmp_path / "store").iterdir())[0] == "store.json"


@pytest.mark.parametrize("with_names", [True, False])
def test_data_and_labels_pickle(tmp_path: Path, with_names: bool) -> None:
    content: dict[Any, Any] = {b"data": pixels("val"), b"labels": [64] * COUNT + [65] * COUNT}
    if with_names:
        content[b"catname2label"] = {"d": 64, "e": 65}
    path = tmp_path / "miniImageNet_category_split_val.pickle"
    path.write_bytes(pickle.dumps(content))
    prepare(tmp_path, tmp_path / "store", workers=1)
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
    ],
)
def test_odd_pickles(tmp_path: Path, content: Any, message: str) -> None:
    (tmp_path / "mini-imagenet-cache-val.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(DertsError, match=message):
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
    check(tmp_path, tmp_path / "store")
    assert set(open_store(tmp_path / "store")) == set(SPLITS)


def test_csv_with_missing_or_outside_images(tmp_path: Path) -> None:
    write_csv(tmp_path)
    (tmp_path / "images" / "val3.png").unlink()
    with pytest.raises(DertsError, match=r"1 of 6 images .* the first is 'val3.png'"):
        prepare(tmp_path, tmp_path / "store")
    secret = tmp_path / "secret.png"
    Image.new("L", (9, 9)).save(secret)
    for name in ("../secret.png", str(secret)):
        (tmp_path / "val.csv").write_text(f"filename,label\n{name},a\n")
        with pytest.raises(DertsError, match="outside of images/"):
            prepare(tmp_path, tmp_path / "store")
    (tmp_path / "val.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DertsError, match="header filename,label"):
        prepare(tmp_path, tmp_path / "store")


def write_packs(
    folder: Path, compressed: bool = False, changes: dict[str, NDArray[Any]] | None = None
) -> None:
    for split, names in SPLITS.items():
        files = []
        for image in pixels(split):
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, "PNG")
            files.append(buffer.getvalue())
        labels = np.repeat(np.arange(len(names), dtype=np.int32), COUNT)
        half = 3 if split == "train" else 0
        for number, part in enumerate(
            (slice(0, half), slice(half, None)) if half else (slice(None),)
        ):
            arrays = {
                "data": np.frombuffer(b"".join(files[part]), np.uint8),
                "offsets": np.cumsum([0, *map(len, files[part])]),
                "labels": labels[part],
                "class_names": np.array(list(names)),
                "filenames": np.array([b"x"] * len(files[part])),
            }
            arrays.update(changes if changes and split == "val" else {})
            save = np.savez_compressed if compressed else np.savez
            name = f"{split}_{number}.npz" if half else f"{split}.npz"
            save(folder / name, **arrays)  # type: ignore[arg-type]


@pytest.mark.parametrize("compressed", [False, True])
def test_packs(tmp_path: Path, compressed: bool) -> None:
    (tmp_path / "data" / "mini-imagenet").mkdir(parents=True)
    write_packs(tmp_path / "data" / "mini-imagenet", compressed)
    check(tmp_path / "data", tmp_path / "store")
    assert not (tmp_path / "store" / "scratch").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.array([7] * 6)}, "out of range"),
        ({"offsets": np.array([0, 5, 3, 4, 5, 6, 7])}, "out of range"),
        ({"labels": np.array([0, 1])}, "6 images but 2 labels"),
        ({"class_names": np.array([{}], dtype=object)}, "cannot be read"),
    ],
)
def test_damaged_packs(tmp_path: Path, changes: dict[str, NDArray[Any]], message: str) -> None:
    write_packs(tmp_path, changes=changes)
    with pytest.raises(DertsError, match=message):
        prepare(tmp_path, tmp_path / "store")


def test_no_archive(tmp_path: Path) -> None:
    (tmp_path / "val.npz").write_bytes(b"PK no")
    with pytest.raises(DertsError, match=r"no readable \.npz"):
        prepare(tmp_path, tmp_path / "store")
    np.savez(tmp_path / "val.npz", other=np.zeros(2))
    with pytest.raises(DertsError, match="no array 'data', only other"):
        prepare(tmp_path, tmp_path / "store")


def test_real_validation_pack(mini_imagenet: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "val.npz").symlink_to(mini_imagenet / "mini-imagenet" / "val.npz")
    prepare(tmp_path / "source", tmp_path / "store", workers=2)
    verify_store(tmp_path / "store")
    table = open_store(tmp_path / "store")["val"]
    assert (len(table), len(table.class_names), table.image_shape) == (9600, 16, (84, 84, 3))
    with np.load(mini_imagenet / "mini-imagenet" / "val.npz", allow_pickle=False) as pack:
        start, stop = pack["offsets"][7000:7002]
        image = Image.open(io.BytesIO(pack["data"][start:stop].tobytes()))
        name = pack["class_names"][pack["labels"][7000]]
    np.testing.assert_array_equal(table.images[7000].numpy(), np.asarray(image))
    assert table.class_names[int(table.labels[7000])] == name


def test_whole_set_is_found_from_the_parent_folder(mini_imagenet: Path) -> None:
    assert find_source(mini_imagenet).kind == "mini-ImageNet packs"
