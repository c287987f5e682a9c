"""ImageTable: images of one size with their labels, wherever they are held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from derts.errors import DertsError
from derts.hardware import send


@dataclass(frozen=True, eq=False)
class ImageTable:
    """Images and labels of one split.

    images       uint8 [n, height, width, channels]: memory-mapped, in memory or on a device
    labels       int64 [n], on the CPU, each in 0 … len(class_names) − 1
    class_names  one name per class
    split        "train", "val", "test" or a name of your own
    categories   one super-category per class, where the data set has them

    >>> import torch
    >>> table = ImageTable(torch.zeros(4, 8, 8, 3, dtype=torch.uint8), torch.tensor([0, 0, 1, 1]),
    ...                    ("cat", "dog"), "train")
    >>> len(table), table.image_shape, table.gather(torch.tensor([[0, 3]])).shape
    (4, (8, 8, 3), torch.Size([1, 2, 8, 8, 3]))
    >>> table
    ImageTable(train: 4 images 8×8×3, 2 classes, cpu)
    """

    images: torch.Tensor
    labels: torch.Tensor
    class_names: tuple[str, ...]
    split: str = "train"
    categories: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise DertsError(
                f"images must be uint8 [n, height, width, channels], not {self.images.dtype} "
                f"{list(self.images.shape)}: convert them, for example with derts.data.from_dataset"
            )
        if self.labels.shape != (len(self.images),):
            raise DertsError(
                f"{len(self.images)} images but labels of shape {list(self.labels.shape)}: "
                "give one label per image"
            )
        if self.labels.dtype != torch.int64:
            raise DertsError(f"labels are {self.labels.dtype}: convert them with labels.long()")
        if self.categories is not None and len(self.categories) != len(self.class_names):
            raise DertsError(
                f"{len(self.categories)} categories for {len(self.class_names)} classes: "
                "give one super-category per class, or none at all"
            )
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(
            self.class_names
        ):
            raise DertsError(
                f"labels reach from {int(self.labels.min())} to {int(self.labels.max())} but there "
                f"are {len(self.class_names)} class names: labels must index class_names"
            )

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.image_shape))
        return (
            f"ImageTable({self.split}: {len(self)} images {shape}, "
            f"{len(self.class_names)} classes, {self.images.device})"
        )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(height, width, channels)."""
        height, width, channels = self.images.shape[1:]
        return height, width, channels

    @property
    def device(self) -> torch.device:
        return self.images.device

    @property
    def gathers_to(self) -> torch.device:
        """Where `gather` puts images."""
        return self.images.device

    def gather(self, indices: torch.Tensor) -> torch.Tensor:
        """Images at integer indices [...] as uint8 [..., height, width, channels]."""
        flat = send(indices.reshape(-1), self.images.device)
        return self.images.index_select(0, flat).reshape(*indices.shape, *self.image_shape)

    def prefetch(self, indices: torch.Tensor) -> None:
        """A hint that `gather` will be asked for these indices; tables held nearby need none."""

    def to(self, device: torch.device | str) -> ImageTable:
        """The same table with its images in that device's memory (labels stay on the CPU)."""
        return replace(self, images=self.images.to(device))

    def in_memory(self) -> ImageTable:
        """A copy whose images no longer depend on a memory-mapped file."""
        return replace(self, images=self.images.clone())

    def class_indices(self, classes: Sequence[str] | None = None) -> list[torch.Tensor]:
        """Per class (all of them, or those named), the indices of its images."""
        order = torch.argsort(self.labels, stable=True)
        counts = torch.bincount(self.labels, minlength=len(self.class_names))
        groups = order.split(counts.tolist())
        return [groups[number] for number in self.class_numbers(classes).tolist()]

    def class_numbers(self, classes: Sequence[str] | None = None) -> torch.Tensor:
        """int64: the number, in `class_names`, of each class (all of them, or those named)."""
        if classes is None:
            return torch.arange(len(self.class_names))
        number_of = {name: number for number, name in enumerate(self.class_names)}
        unknown = [name for name in classes if name not in number_of]
        if unknown:
            raise DertsError(
                f"split {self.split!r} has no class {unknown[0]!r} ({len(unknown)} of "
                f"{len(classes)} unknown): its classes are {', '.join(self.class_names[:5])}, …"
            )
        return torch.tensor([number_of[name] for name in classes], dtype=torch.long)
