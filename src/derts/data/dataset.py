"""Any torch or Hugging Face dataset of images with labels as an ImageTable."""

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from derts.data.decode import BrokenImageError, Pixels, decode
from derts.data.table import ImageTable
from derts.errors import DertsError


def from_dataset(
    dataset: Any,
    *,
    class_names: Sequence[str] | None = None,
    split: str = "train",
    size: int | None = None,
    grayscale: bool | None = None,
) -> ImageTable:
    """Read a map-style or iterable dataset into memory.

    Samples are pairs (image, label) as of torchvision, or dictionaries with "image" and "label" as
    of Hugging Face. Images are of Pillow, tensors [channels, height, width] (uint8, or floats in
    0 … 1) or arrays uint8 [height, width, channels]. The first one decides size and colour for
    all, unless they are given. Labels may be any integers: sorted, they become 0, 1, …

    class_names  one name per label; if left out, those that the dataset has, if any

    >>> from torch.utils.data import TensorDataset
    >>> data = TensorDataset(torch.rand(4, 3, 8, 8), torch.tensor([7, 7, 9, 9]))
    >>> from_dataset(data).class_names
    ('7', '9')
    """
    images: list[Pixels] = []
    labels: list[int] = []
    channels = None if grayscale is None else 1 if grayscale else 3
    for index, (image, label) in enumerate(_pairs(dataset)):
        plain = _as_pillow(image, index)
        channels = channels or (1 if plain.mode in ("L", "1") else 3)
        size = size or min(plain.size)
        try:
            images.append(decode(plain, size, channels))
        except BrokenImageError as error:
            raise DertsError(f"image {index} cannot be read ({error}): replace it") from None
        labels.append(_label(label, index))
    if not images:
        raise DertsError("the dataset is empty: give one with at least one (image, label)")
    values, numbered = np.unique(np.array(labels, dtype=np.int64), return_inverse=True)
    items, numbers = torch.from_numpy(np.stack(images)), torch.from_numpy(numbered).long()
    return ImageTable(items, numbers, _names(values.tolist(), class_names, dataset), split)


def _pairs(dataset: Any) -> Iterator[tuple[Any, Any]]:
    """The samples, by index where the dataset has a length: not all stop by IndexError."""
    if isinstance(dataset, dict):  # as Hugging Face's load_dataset gives it
        splits = ", ".join(map(repr, dataset))
        raise DertsError(f"this is a dictionary of {splits or 'nothing'}: give one of its datasets")
    is_map = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    samples = (dataset[index] for index in range(len(dataset))) if is_map else iter(dataset)
    for index, sample in enumerate(samples):
        if isinstance(sample, dict) and {"image", "label"} <= sample.keys():
            yield sample["image"], sample["label"]
        elif isinstance(sample, (tuple, list)) and len(sample) == 2:
            yield sample[0], sample[1]
        elif isinstance(sample, dict):
            found = f"sample {index} of the dataset has columns {', '.join(map(str, sample))}"
            raise DertsError(f'{found}: rename two of them to "image" and "label"')
        else:
            kind = type(sample).__name__
            raise DertsError(f"sample {index} is a {kind} and no pair (image, label): give pairs")


def _as_pillow(image: Any, index: int) -> Image.Image:
    if isinstance(image, Image.Image):
        return image
    array = image
    if isinstance(image, torch.Tensor):
        tensor = image.detach().cpu()
        if tensor.is_floating_point():
            low, high = float(tensor.min()), float(tensor.max())
            if not (low >= 0 and high <= 1):  # written so that NaN is refused
                found = f"image {index} of the dataset has values from {low:.3g} to {high:.3g}"
                raise DertsError(f"{found}, not 0 … 1: leave normalisation out of its transform")
            tensor = tensor.float().mul(255).round().to(torch.uint8)
        array = (tensor.permute(1, 2, 0) if tensor.ndim == 3 else tensor).numpy()
    if isinstance(array, np.ndarray) and array.dtype == np.uint8:
        array = array[..., 0] if array.shape[2:] == (1,) else array
        if array.ndim == 2 or array.shape[2:] == (3,):
            return Image.fromarray(np.ascontiguousarray(array))
    found = f"{type(image).__name__} {getattr(image, 'dtype', '')} {getattr(image, 'shape', '')}"
    fix = "give a Pillow image, a tensor [1 or 3, height, width] or uint8 [height, width, 1 or 3]"
    raise DertsError(f"image {index} of the dataset is a {found}: {fix}")


def _label(label: Any, index: int) -> int:
    try:
        return operator.index(label.item() if hasattr(label, "item") else label)
    except (TypeError, ValueError, RuntimeError):  # the last ones of arrays with several values
        wrong = f"label {index} of the dataset is {label!r:.40}, not a whole number"
        raise DertsError(f"{wrong}: number the classes, as with target_transform") from None


def _names(values: list[int], given: Sequence[str] | None, dataset: Any) -> tuple[str, ...]:
    if given is not None and len(given) == len(values):
        return tuple(given)
    names = getattr(dataset, "classes", None) if given is None else given
    if names is None and "label" in (getattr(dataset, "features", None) or {}):
        names = getattr(dataset.features["label"], "names", None)
    if names is not None and values[0] >= 0 and values[-1] < len(names):
        return tuple(str(names[value]) for value in values)
    if given is None:
        return tuple(map(str, values))
    found = f"{len(values)} labels from {values[0]} to {values[-1]}"
    raise DertsError(f"{len(given)} class names for {found}: give one name per label")
