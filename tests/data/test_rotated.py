"""Turned classes: what is turned how, and what cannot be."""

from __future__ import annotations

import pytest
import torch

from derts.data import ImageTable, with_rotated_classes
from derts.data.streaming import StreamedTable
from derts.errors import DertsError


def table(height: int = 4) -> ImageTable:
    images = torch.arange(3 * height * 4 * 3, dtype=torch.uint8).reshape(3, height, 4, 3)
    return ImageTable(images, torch.tensor([1, 0, 1]), ("a", "b"), "train", ("x", "y"))


def test_turned_classes_are_classes_of_their_own() -> None:
    images, turned = table().images, with_rotated_classes(table(), ("b",))
    assert turned.class_names == ("b", "b, 90°", "b, 180°", "b, 270°")
    assert turned.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    for image, number in ((images[0], 0), (images[2], 1)):
        for turn in range(4):
            expected = image
            for _ in range(turn):  # a quarter: columns become rows
                expected = expected.transpose(0, 1).flip(0)
            assert torch.equal(turned.images[2 * turn + number], expected)


def test_all_classes_are_turned_where_none_are_named() -> None:
    turned = with_rotated_classes(table())
    assert turned.class_names[:4] == ("a", "b", "a, 90°", "b, 90°")
    assert [len(group) for group in turned.class_indices()] == [1, 2] * 4
    assert turned.split == "train"


def test_a_streamed_table_is_turned_into_one_of_its_own() -> None:
    streamed = StreamedTable.of(table(), torch.device("cpu"))
    streamed.prefetch(torch.tensor([0]))
    turned = with_rotated_classes(streamed)
    assert torch.equal(turned.gather(torch.tensor([0])), table().images[1:2])


def test_images_that_are_not_square_are_refused() -> None:
    with pytest.raises(DertsError, match="4 pixels wide and 6 high: leave out"):
        with_rotated_classes(table(height=6))
