"""ImageTable: what it gives back, and what it refuses; classes of rotated images."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from derts.data import ImageTable, Table, with_rotated_classes
from derts.data.streaming import StreamedTable
from derts.errors import DertsError

IMAGES = torch.arange(4 * 2 * 2 * 3).to(torch.uint8).reshape(4, 2, 2, 3)
LABELS = torch.tensor([1, 0, 1, 1])


def test_gather_and_class_indices() -> None:
    table = ImageTable(IMAGES, LABELS, ("a", "b", "empty"))
    gathered = table.gather(torch.tensor([[3, 0], [1, 1]]))
    assert torch.equal(gathered[0, 0], IMAGES[3])
    assert [indices.tolist() for indices in table.class_indices()] == [[1], [0, 2, 3], []]
    assert [indices.tolist() for indices in table.class_indices(["b"])] == [[0, 2, 3]]
    with pytest.raises(DertsError, match="no class 'c'"):
        table.class_indices(["c"])


def test_the_contract_of_any_table() -> None:
    table: Table = ImageTable(IMAGES, LABELS, ("a", "b"))
    assert table.item_shape == (2, 2, 3)
    assert table.items.shape == (4, 2, 2, 3)
    assert table.to("cpu").class_numbers(["b"]).tolist() == [1]
    assert (len(table), table.device.type, table.gathers_to.type) == (4, "cpu", "cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"items": IMAGES.float()}, "must be uint8"),
        ({"items": IMAGES[0]}, "must be uint8"),
        ({"labels": LABELS[:2]}, "one label per image"),
        ({"labels": LABELS.int()}, "labels.long"),
        ({"labels": LABELS + 1}, "labels reach from 1 to 2"),
        ({"labels": LABELS - 1}, "labels reach from -1"),
        ({"categories": ("x",)}, "1 categories for 2 classes"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {"items": IMAGES, "labels": LABELS, "class_names": ("a", "b")}
    with pytest.raises(DertsError, match=message):
        ImageTable(**(fields | change))


def rectangles(height: int = 4) -> ImageTable:
    images = torch.arange(3 * height * 4 * 3, dtype=torch.uint8).reshape(3, height, 4, 3)
    return ImageTable(images, torch.tensor([1, 0, 1]), ("a", "b"), "train", ("x", "y"))


def test_rotated_classes_are_classes_of_their_own() -> None:
    images, rotated = rectangles().images, with_rotated_classes(rectangles(), ("b",))
    assert rotated.class_names == ("b", "b, 90°", "b, 180°", "b, 270°")
    assert rotated.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    for image, number in ((images[0], 0), (images[2], 1)):
        expected = image
        for quarter in range(4):
            assert torch.equal(rotated.images[2 * quarter + number], expected)
            expected = expected.transpose(0, 1).flip(0)  # columns become rows


def test_all_classes_are_rotated_where_none_are_named_also_streamed_ones() -> None:
    for table in (rectangles(), StreamedTable.of(rectangles(), torch.device("cpu"))):
        rotated = with_rotated_classes(table)
        assert rotated.class_names[:4] == ("a", "b", "a, 90°", "b, 90°")
        assert [len(group) for group in rotated.class_indices()] == [1, 2] * 4
        assert torch.equal(rotated.gather(torch.tensor([0])), rectangles().images[1:2])


def test_images_that_are_not_square_are_refused() -> None:
    with pytest.raises(DertsError, match=r"rotated, not 4×6: leave out --tasks\.rotated"):
        with_rotated_classes(rectangles(height=6))
