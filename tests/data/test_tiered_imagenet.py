"""tiered-ImageNet as pickled PNG files and as .npz."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from derts.data import find_source, open_store, prepare
from derts.errors import DertsError

LABELS = {
    "label_specific": np.array([0, 0, 2, 2, 5, 5]),
    "label_general": np.array([1, 1, 0, 0, 1, 1]),
    "label_specific_str": ["n0", "n1", "n2", "n3", "n4", "n5"],
    "label_general_str": ["bird", "tool"],
}


def pixels() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (6, 84, 84, 3), dtype=np.uint8)


def png(image: NDArray[np.uint8], column: bool = True) -> NDArray[np.uint8]:
    """What cv2.imencode gives: the file's bytes as uint8 [k, 1], or [k]."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    encoded = np.frombuffer(buffer.getvalue(), np.uint8)
    return encoded.reshape(-1, 1) if column else encoded


def write_labels(folder: Path, labels: Any = LABELS, protocol: int = 2) -> None:
    (folder / "train_labels.pkl").write_bytes(pickle.dumps(labels, protocol=protocol))


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("kind", ["list", "flat list", "object array", "bytes keys"])
def test_png_pickles(tmp_path: Path, protocol: int, kind: str) -> None:
    images: Any = [png(image, column=kind != "flat list") for image in pixels()]
    images[1] = png(np.zeros((84, 84, 3), np.uint8))
    if kind == "object array":
        array = np.empty(len(images), dtype=object)
        array[:] = images
        images = array
    labels: Any = LABELS
    if kind == "bytes keys":
        labels = {key.encode(): value for key, value in LABELS.items()}
        labels[b"label_general_str"] = [b"bird", b"tool"]
    (tmp_path / "train_images_png.pkl").write_bytes(pickle.dumps(images, protocol=protocol))
    write_labels(tmp_path, labels, protocol)
    assert find_source(tmp_path).kind == "tiered-ImageNet"
    prepare(tmp_path, tmp_path / "store")
    table = open_store(tmp_path / "store")["train"]
    expected = pixels()
    expected[1] = 0
    np.testing.assert_array_equal(table.items.numpy(), expected)
    assert table.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert table.class_names == ("n0", "n2", "n5")
    assert table.categories == ("tool", "bird", "tool")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_with_blue_first(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "train_images.npz", images=pixels()[..., ::-1])
    write_labels(tmp_path, {"labels": [3, 3, 3, 4, 4, 4]})
    prepare(tmp_path, tmp_path / "store")
    table = open_store(tmp_path / "store")["train"]
    np.testing.assert_array_equal(table.items.numpy(), pixels())
    assert table.class_names == ("3", "4")
    assert table.categories is None


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"other": 1}, "neither label_specific nor labels but other"),
        ([1], "no dictionary"),
        ({"labels": [1, 2]}, "6 images but 2 labels"),
        ({"labels": ["a"] * 6}, "no list of whole numbers"),
        ({"labels": [[1], [2, 3]]}, "no list of whole numbers"),
        ({"labels": 7}, "for a list"),
        ({**LABELS, "label_general": [-1] * 6}, "no text for every label"),
        ({**LABELS, "label_specific_str": ["n0"]}, "no text for every label"),
    ],
)
def test_odd_labels(tmp_path: Path, labels: Any, message: str) -> None:
    np.savez(tmp_path / "train_images.npz", images=pixels())
    write_labels(tmp_path, labels)
    with pytest.raises(DertsError, match=message):
        prepare(tmp_path, tmp_path / "store")


def test_missing_labels_and_odd_images(tmp_path: Path) -> None:
    (tmp_path / "train_images_png.pkl").write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(DertsError, match=r"train_labels.pkl is not: download it too"):
        prepare(tmp_path, tmp_path / "store")
    write_labels(tmp_path)
    with pytest.raises(DertsError, match="no list of encoded images"):
        prepare(tmp_path, tmp_path / "store")
