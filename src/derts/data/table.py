"""Table: items with labels, gathered by index. Items are images, or rows of features."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from derts.errors import DertsError
from derts.hardware import send

QUARTERS = 4  # upright, and rotated by 90, 180 and 270 degrees


def describe_items(count: int, shape: Sequence[int]) -> str:
    """So many items of a shape, in words: 1,200 images 84×84×3."""
    if len(shape) == 1:
        return f"{count:,} rows of {shape[0]:,} features"
    return f"{count:,} images {'×'.join(map(str, shape))}"


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """Items of one split with their labels: all that tasks, learners and strategies ask of data."""

    items: torch.Tensor  # [n, *item_shape]: what the backbone takes; on disk or on a device
    labels: torch.Tensor  # int64 [n], on the CPU, each in 0 … len(class_names) − 1
    class_names: tuple[str, ...]
    split: str = "train"  # or "val", "test", or a name of your own
    categories: tuple[str, ...] | None = None  # one super-category per class, if there are any

    def to(self, device: torch.device | str) -> Self:
        """The same table with its items in that device's memory (labels stay on the CPU)."""
        return replace(self, items=self.items.to(device))

    def __len__(self) -> int:
        return len(self.items)

    @property
    def item_shape(self) -> tuple[int, ...]:
        return tuple(self.items.shape[1:])

    @property
    def of_features(self) -> bool:
        """Whether items are rows of features, not images."""
        return len(self.item_shape) == 1

    @property
    def noun(self) -> str:
        """What an item is called in a message."""
        return "row" if self.of_features else "image"

    @property
    def device(self) -> torch.device:
        return self.items.device

    @property
    def gathers_to(self) -> torch.device:
        """Where `gather` puts items."""
        return self.items.device

    def gather(self, indices: torch.Tensor) -> torch.Tensor:
        """Items at integer indices [...] as a tensor [..., *item_shape]."""
        flat = send(indices.reshape(-1), self.items.device)
        return self.items.index_select(0, flat).reshape(*indices.shape, *self.item_shape)

    def prefetch(self, indices: torch.Tensor) -> None:
        """A hint that `gather` will be asked for these indices; tables held nearby need none."""

    def class_indices(
        self, classes: Sequence[str] | None = None, labels: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        """The indices of each class's items, by the table's labels or by others (−1: no class)."""
        labels = self.labels if labels is None else labels
        order = torch.argsort(labels, stable=True)
        counts = torch.bincount(labels + 1, minlength=len(self.class_names) + 1)
        groups = order.split(counts.tolist())[1:]
        return [groups[number] for number in self.class_numbers(classes).tolist()]

    def by_class(self) -> dict[str, torch.Tensor]:
        """Each class's items."""
        every = zip(self.class_names, self.class_indices(), strict=True)
        return {name: self.gather(indices) for name, indices in every}

    def class_numbers(self, classes: Sequence[str] | None = None) -> torch.Tensor:
        """int64: the number, in `class_names`, of each class (all of them, or those named)."""
        if classes is None:
            return torch.arange(len(self.class_names))
        number_of = {name: number for number, name in enumerate(self.class_names)}
        unknown = [name for name in classes if name not in number_of]
        if unknown:
            wrong = f"split {self.split!r} has no class {unknown[0]!r} ({len(unknown)} are unknown)"
            raise DertsError(f"{wrong}: its classes are {', '.join(self.class_names[:5])}, …")
        if len(set(classes)) < len(classes):
            twice = next(name for name in classes if classes.count(name) > 1)
            raise DertsError(f"class {twice!r} is named twice: name each class once")
        return torch.tensor([number_of[name] for name in classes], dtype=torch.long)

    def __repr__(self) -> str:
        items = describe_items(len(self), self.item_shape)
        about = f"{self.split}: {items}, {len(self.class_names)} classes, {self.device}"
        return f"{type(self).__name__}({about})"

    def __post_init__(self) -> None:
        classes, labels, noun = len(self.class_names), self.labels, self.noun
        if labels.shape != (len(self),):
            wrong = f"{len(self)} {noun}s but labels of shape {list(labels.shape)}"
            raise DertsError(f"{wrong}: give one label per {noun}")
        if labels.dtype != torch.int64:
            raise DertsError(f"labels are {labels.dtype}: convert them with labels.long()")
        low, high = (int(labels.min()), int(labels.max())) if len(labels) else (0, -1)
        if not (low >= 0 and high < classes):
            wrong = f"labels reach from {low} to {high} but there are {classes} class names"
            raise DertsError(f"{wrong}: labels must index class_names")
        if self.categories is not None and len(self.categories) != classes:
            wrong = f"{len(self.categories)} categories for {classes} classes"
            raise DertsError(f"{wrong}: give one super-category per class, or none at all")


@dataclass(frozen=True, eq=False, repr=False)
class ImageTable(Table):
    """A table whose items are images: uint8 [n, height, width, channels].

    >>> import torch
    >>> table = ImageTable(torch.zeros(4, 8, 8, 3, dtype=torch.uint8), torch.tensor([0, 0, 1, 1]),
    ...                    ("cat", "dog"), "train")
    >>> len(table), table.item_shape, table.gather(torch.tensor([[0, 3]])).shape
    (4, (8, 8, 3), torch.Size([1, 2, 8, 8, 3]))
    >>> table
    ImageTable(train: 4 images 8×8×3, 2 classes, cpu)
    """

    def __post_init__(self) -> None:
        if self.items.dtype != torch.uint8 or self.items.ndim != 4:
            wrong = f"images are {self.items.dtype} {list(self.items.shape)} and must be uint8"
            raise DertsError(f"{wrong} [n, height, width, channels]: use derts.data.from_dataset")
        super().__post_init__()

    @property
    def images(self) -> torch.Tensor:
        return self.items


@dataclass(frozen=True, eq=False, repr=False)
class FeatureTable(Table):
    """A table whose items are rows of features: float32 [n, d].

    >>> table = FeatureTable(torch.eye(4), torch.tensor([0, 0, 1, 1]), ("sport", "news"))
    >>> table, table.gather(torch.tensor([[0, 3]])).shape
    (FeatureTable(train: 4 rows of 4 features, 2 classes, cpu), torch.Size([1, 2, 4]))
    """

    def __post_init__(self) -> None:
        shape = list(self.items.shape)
        if self.items.dtype != torch.float32 or len(shape) != 2 or not shape[1]:
            wrong = f"features must be float32 [n, d], not {self.items.dtype} {shape}"
            raise DertsError(f"{wrong}: convert them, for example with features.float()")
        super().__post_init__()

    @property
    def features(self) -> torch.Tensor:
        return self.items


def with_rotated_classes(images: Table, classes: Sequence[str] | None = None) -> ImageTable:
    """A table of these classes (all: None) and, as classes of their own, of each one rotated.

    By 90, 180 and 270 degrees: four times as many classes and images. Upright ones come first.

    >>> table = ImageTable(torch.arange(4, dtype=torch.uint8).reshape(1, 2, 2, 1),
    ...                    torch.tensor([0]), ("cat",))
    >>> rotated = with_rotated_classes(table)
    >>> rotated.class_names
    ('cat', 'cat, 90°', 'cat, 180°', 'cat, 270°')
    >>> rotated.images[:2].flatten(1).tolist()
    [[0, 1, 2, 3], [1, 3, 0, 2]]
    """
    if images.of_features:
        raise DertsError("features cannot be rotated: leave out --tasks.rotated")
    height, width, _ = images.item_shape
    if height != width:
        wrong = f"only square images can be rotated, not {width}×{height}"
        raise DertsError(f"{wrong}: leave out --tasks.rotated, or prepare with --size {width}")
    groups = images.class_indices(classes)
    names = tuple(classes or images.class_names)
    upright = images.gather(torch.cat(groups))
    four = torch.empty((QUARTERS, *upright.shape), dtype=torch.uint8, device=upright.device)
    for quarter, rotated in enumerate(four):
        rotated.copy_(torch.rot90(upright, quarter, (1, 2)))
    labels = torch.arange(len(names)).repeat_interleave(torch.tensor([len(g) for g in groups]))
    labels = torch.cat([labels + quarter * len(names) for quarter in range(QUARTERS)])
    names += tuple(f"{name}, {90 * q}°" for q in range(1, QUARTERS) for name in names)
    return ImageTable(four.flatten(0, 1), labels, names, images.split)
