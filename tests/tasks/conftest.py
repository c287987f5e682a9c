"""Tables without pictures, to draw tasks from."""

from collections.abc import Callable

import pytest
import torch

from derts.data.table import ImageTable
from derts.tasks import generator


@pytest.fixture
def table() -> Callable[..., ImageTable]:
    """A table of classes of so many images each, in random order."""

    def made(*sizes: int) -> ImageTable:
        labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        labels = labels[torch.randperm(len(labels), generator=generator(7))]
        images = torch.zeros(len(labels), 2, 2, 1, dtype=torch.uint8)
        return ImageTable(images, labels, tuple(f"class {n}" for n in range(len(sizes))))

    return made
