"""ImageTable: what it gives back, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from derts.data import ImageTable
from derts.errors import DertsError

IMAGES = torch.arange(4 * 2 * 2 * 3).to(torch.uint8).reshape(4, 2, 2, 3)
LABELS = torch.tensor([1, 0, 1, 1])


def test_gather_and_class_indices() -> None:
    table = ImageTable(IMAGES, LABELS, ("a", "b", "empty"))
    gathered = table.gather(torch.tensor([[3, 0], [1, 1]]))
    assert torch.equal(gathered[0, 0], IMAGES[3])
    assert [indices.tolist() for indices in table.class_indices()] == [[1], [0, 2, 3], []]
    assert [indices.tolist() for indices in table.class_indices(["b"])] == [[0, 2, 3]]
    assert table.in_memory().images.data_ptr() != table.images.data_ptr()
    with pytest.raises(DertsError, match="no class 'c'"):
        table.class_indices(["c"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": IMAGES.float()}, "must be uint8"),
        ({"images": IMAGES[0]}, "must be uint8"),
        ({"labels": LABELS[:2]}, "one label per image"),
        ({"labels": LABELS.int()}, "labels.long"),
        ({"labels": LABELS + 1}, "labels reach from 1 to 2"),
        ({"labels": LABELS - 1}, "labels reach from -1"),
        ({"categories": ("x",)}, "1 categories for 2 classes"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {"images": IMAGES, "labels": LABELS, "class_names": ("a", "b")}
    with pytest.raises(DertsError, match=message):
        ImageTable(**(fields | change))
