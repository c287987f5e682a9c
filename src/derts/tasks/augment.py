"""Augmentation: random horizontal flips and translations of the images of an update."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from derts.tasks.pool import TaskPool
from derts.tasks.randomness import Seed, numpy_generator


def with_augmentation(
    pool: TaskPool, horizontal_flip: bool, translation: int, seed: Seed
) -> TaskPool:
    """The same tasks, with an augmentation int64 [N, S + Q, 3] of each image, drawn uniformly.

    `horizontal_flip`: half of the images are flipped. `translation`: moved by at most so many
    pixels in each direction. For updates alone: evaluation and selection see images as they are.
    """
    shape = (len(pool), pool.support.shape[1] + pool.query.shape[1])
    random, drawn = numpy_generator(seed), np.empty((*shape, 3), np.int64)
    drawn[..., 0] = random.integers(0, 1 + horizontal_flip, shape, dtype=np.uint32)
    drawn[..., 1:] = random.integers(-translation, translation + 1, (*shape, 2), dtype=np.int32)
    return replace(pool, augmentation=torch.from_numpy(drawn))


def apply_augmentation(images: Tensor, augmentation: Tensor) -> Tensor:
    """Images [..., H, W, C], each flipped and moved by its augmentation [..., 3].

    What comes in at an edge is the image's reflection.

    >>> image = torch.arange(1, 5).reshape(1, 1, 4, 1)
    >>> for one in ([0, 0, 0], [1, 0, 0], [0, 0, 1], [1, 0, 1]):
    ...     print(one, apply_augmentation(image, torch.tensor([one])).flatten().tolist())
    [0, 0, 0] [1, 2, 3, 4]
    [1, 0, 0] [4, 3, 2, 1]
    [0, 0, 1] [2, 1, 2, 3]
    [1, 0, 1] [3, 4, 3, 2]
    """
    flat, (flip, down, right) = images.flatten(0, -4), augmentation.flatten(0, -2).unbind(1)
    rows, columns = _sources(images.shape[-3], down), _sources(images.shape[-2], right)
    columns = torch.where(flip[:, None] > 0, images.shape[-2] - 1 - columns, columns)
    each = torch.arange(len(flat), device=flat.device)
    found = flat[each[:, None, None], rows[:, :, None], columns[:, None, :]]
    return found.reshape(images.shape)


def _sources(size: int, moved: Tensor) -> Tensor:
    """int64 [n, size]: from where each place of a line that is moved by [n] comes."""
    wanted = torch.arange(size, device=moved.device) - moved[:, None]
    last = size - 1
    return last - (last - wanted.remainder(max(2 * last, 1))).abs()  # to and fro between the ends
