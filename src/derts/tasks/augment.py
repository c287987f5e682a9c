"""Views: every image of an update seen anew, mirrored and moved by some pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from derts.tasks.pool import TaskPool
from derts.tasks.randomness import generator


def with_views(
    pool: TaskPool, mirror: bool, shift: int, seed: int | Sequence[int | str]
) -> TaskPool:
    """The same tasks, each image with a view of its own, drawn evenly.

    `mirror`: left and right change places in half of them. `shift`: moved by at most so many
    pixels each way. Evaluation and selection see images as they are: views are for an update.
    """
    shape = (len(pool), pool.support.shape[1] + pool.query.shape[1])
    random = generator(seed)
    mirrored = torch.randint(0, 2 if mirror else 1, (*shape, 1), generator=random)
    moved = torch.randint(-shift, shift + 1, (*shape, 2), generator=random)
    return replace(pool, views=torch.cat((mirrored, moved), 2))


def seen(images: Tensor, views: Tensor) -> Tensor:
    """Images [..., H, W, C] by their views [..., 3]; what comes in at an edge is its reflection.

    >>> image = torch.arange(1, 5).reshape(1, 1, 4, 1)
    >>> for view in ([0, 0, 0], [1, 0, 0], [0, 0, 1], [1, 0, 1]):
    ...     print(view, seen(image, torch.tensor([view])).flatten().tolist())
    [0, 0, 0] [1, 2, 3, 4]
    [1, 0, 0] [4, 3, 2, 1]
    [0, 0, 1] [2, 1, 2, 3]
    [1, 0, 1] [3, 4, 3, 2]
    """
    flat, (mirrored, down, right) = images.flatten(0, -4), views.flatten(0, -2).unbind(1)
    rows, columns = _places(images.shape[-3], down), _places(images.shape[-2], right)
    columns = torch.where(mirrored[:, None] > 0, images.shape[-2] - 1 - columns, columns)
    each = torch.arange(len(flat), device=flat.device)
    found = flat[each[:, None, None], rows[:, :, None], columns[:, None, :]]
    return found.reshape(images.shape)


def _places(size: int, moved: Tensor) -> Tensor:
    """int64 [n, size]: from where each place of a line that is moved by [n] comes."""
    wanted = torch.arange(size, device=moved.device) - moved[:, None]
    last = size - 1
    return last - (last - wanted.remainder(max(2 * last, 1))).abs()  # to and fro between the ends
