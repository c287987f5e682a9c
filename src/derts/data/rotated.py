"""Turned classes: four classes for every one, its images upright and turned by quarter turns."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from derts.data.table import ImageTable
from derts.errors import DertsError

TURNS = 4


def with_rotated_classes(images: ImageTable, classes: Sequence[str] | None = None) -> ImageTable:
    """A table of these classes (all: None) and, as classes of their own, of each turned.

    By 90, 180 and 270 degrees: four times as many classes and images. Upright ones come first.

    >>> table = ImageTable(torch.arange(4, dtype=torch.uint8).reshape(1, 2, 2, 1),
    ...                    torch.tensor([0]), ("cat",))
    >>> turned = with_rotated_classes(table)
    >>> turned.class_names
    ('cat', 'cat, 90°', 'cat, 180°', 'cat, 270°')
    >>> turned.images[:2].flatten(1).tolist()
    [[0, 1, 2, 3], [1, 3, 0, 2]]
    """
    height, width, _ = images.image_shape
    if height != width:
        raise DertsError(
            f"only square images can be turned, and these are {width} pixels wide and {height} "
            f"high: leave out --tasks.turned, or prepare the data again with --size {width}"
        )
    groups = images.class_indices(classes)
    names = tuple(classes or images.class_names)
    upright = images.gather(torch.cat(groups))
    four = torch.empty((TURNS, *upright.shape), dtype=torch.uint8, device=upright.device)
    for turn, turned_images in enumerate(four):
        turned_images.copy_(torch.rot90(upright, turn, (1, 2)))
    labels = torch.cat([torch.full((len(group),), number) for number, group in enumerate(groups)])
    turned = tuple(f"{name}, {90 * turn}°" for turn in range(1, TURNS) for name in names)
    return ImageTable(
        four.flatten(0, 1),
        torch.cat([labels + turn * len(names) for turn in range(TURNS)]),
        names + turned,
        images.split,
    )
