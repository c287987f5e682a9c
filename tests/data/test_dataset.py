"""Any torch Dataset of images and labels becomes an ImageTable."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset

from derts.data import from_dataset
from derts.errors import DertsError


class Pairs(Dataset[Any]):
    def __init__(self, *pairs: Any) -> None:
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Any:
        return self.pairs[index]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield Image.new("L", (9, 9), 200), 1
        yield Image.new("L", (9, 9), 100), np.int64(0)


IMAGE = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "image",
    [
        IMAGE,
        Image.fromarray(IMAGE),
        torch.from_numpy(IMAGE).permute(2, 0, 1),
        torch.from_numpy(IMAGE).permute(2, 0, 1).float() / 255,
        torch.from_numpy(IMAGE).permute(2, 0, 1).double() / 255,
    ],
    ids=lambda image: f"{type(image).__name__} {getattr(image, 'dtype', '')}",
)
def test_kinds_of_images(image: Any) -> None:
    table = from_dataset(Pairs((image, 3), (image, torch.tensor(3)), (image, -1)), split="mine")
    np.testing.assert_array_equal(table.images[1].numpy(), IMAGE)
    assert table.labels.tolist() == [1, 1, 0]
    assert (table.class_names, table.split) == (("-1", "3"), "mine")


def test_iterable_and_gray() -> None:
    table = from_dataset(Stream())
    assert table.item_shape == (9, 9, 1)
    assert table.images[:, 0, 0, 0].tolist() == [200, 100]
    assert from_dataset(Stream(), size=4, grayscale=False).item_shape == (4, 4, 3)


def test_gray_tensors_and_arrays_without_channels() -> None:
    assert from_dataset(Pairs((torch.zeros(5, 5), 0))).item_shape == (5, 5, 1)
    assert from_dataset(Pairs((np.zeros((5, 5), np.uint8), 0))).item_shape == (5, 5, 1)


def test_dictionaries_as_hugging_face_gives_them() -> None:
    pairs = Pairs({"image": IMAGE, "label": 1}, {"image": Image.fromarray(IMAGE), "label": 0})
    pairs.features = {"image": None, "label": SimpleNamespace(names=["no", "yes"])}  # type: ignore[attr-defined]
    table = from_dataset(pairs)
    assert (table.labels.tolist(), table.class_names) == ([1, 0], ("no", "yes"))
    np.testing.assert_array_equal(table.images[0], table.images[1])


def test_a_dataset_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["no", "yes", "never"])}
    )
    images, labels = [Image.fromarray(255 - IMAGE), Image.fromarray(IMAGE)] * 2, [1, 0, 1, 0]
    data = datasets.Dataset.from_dict({"image": images, "label": labels}, features=features)
    for given in (data, data.with_format("torch"), data.to_iterable_dataset(), data.select([0, 1])):
        table = from_dataset(given)
        assert (table.labels[:2].tolist(), table.class_names) == ([1, 0], ("no", "yes"))
        np.testing.assert_array_equal(table.images[1].numpy(), IMAGE)
    with pytest.raises(DertsError, match="'train': give one of its datasets"):
        from_dataset(datasets.DatasetDict(train=data))
    with pytest.raises(DertsError, match="columns picture, label"):
        from_dataset(data.rename_column("image", "picture"))


def test_a_dictionary_of_splits() -> None:
    with pytest.raises(DertsError, match="'train', 'test': give one of its datasets"):
        from_dataset({"train": Pairs((IMAGE, 0)), "test": Pairs((IMAGE, 0))})


def test_names() -> None:
    pairs = Pairs((IMAGE, 0), (IMAGE, 2))
    pairs.classes = ["zero", "one", "two"]  # type: ignore[attr-defined]
    assert from_dataset(pairs).class_names == ("zero", "two")
    assert from_dataset(pairs, class_names=["a", "b"]).class_names == ("a", "b")
    assert from_dataset(pairs, class_names=["a", "b", "c"]).class_names == ("a", "c")
    with pytest.raises(DertsError, match="one name per label"):
        from_dataset(pairs, class_names=["a"])


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ((torch.randn(3, 8, 8), 0), "leave normalisation out"),
        ((torch.full((3, 8, 8), torch.nan), 0), "leave normalisation out"),
        ((torch.zeros(3, 8, 8, dtype=torch.int64), 0), "give a Pillow image"),
        ((torch.zeros(5, 8, 8), 0), "give a Pillow image"),
        ((np.zeros((8, 8, 3)), 0), "give a Pillow image"),
        (("a", 0), "give a Pillow image"),
        ((IMAGE, "cat"), "not a whole number"),
        ((IMAGE, torch.tensor([1, 2])), "not a whole number"),
        (IMAGE, "no pair"),
        ({"img": IMAGE, "label": 0}, r"has columns img, label: rename two of them to .image"),
    ],
)
def test_odd_samples(sample: Any, message: str) -> None:
    with pytest.raises(DertsError, match=message):
        from_dataset(Pairs(sample))


def test_empty() -> None:
    with pytest.raises(DertsError, match="is empty"):
        from_dataset(Pairs())
