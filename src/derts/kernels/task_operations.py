"""What MAML's networks of all tasks are made of, in plain torch; derts.kernels.task_kernels has the
same as kernels.

Values are [T, n, H, W, C], filters [T, 9, C, F] (or [T, 1, C, F]: of single pixels), pooled values
[T, n, H // 2, W // 2, C], one number per task and channel [T, C]. Sums are of each task's first
`context` images and at least float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

ALL = (1, 2, 3)  # images, height and width of a task


def wide(values: Tensor) -> torch.dtype:
    """The dtype of sums."""
    return torch.promote_types(values.dtype, torch.float32)


def per_channel(numbers: Tensor) -> Tensor:
    """[T, C] -> [T, 1, 1, 1, C]."""
    return numbers[:, None, None, None]


def patches(values: Tensor) -> Tensor:
    """[..., H, W, C] -> [N, H, W, 9C]: the 3×3 pixels around each, zeros outside."""
    height, width, channels = values.shape[-3:]
    framed = F.pad(values.reshape(-1, height, width, channels), (0, 0, 1, 1, 1, 1))
    around = framed.unfold(1, 3, 1).unfold(2, 3, 1).permute(0, 1, 2, 4, 5, 3)
    return around.reshape(len(framed), height, width, -1)


def convolved(values: Tensor, filters: Tensor) -> Tensor:
    """The convolution, [T, n, H, W, F]."""
    if filters.shape[1] == 1:
        return (values.flatten(1, 3) @ filters[:, 0].to(values.dtype)).view(*values.shape[:4], -1)
    found = [
        F.conv2d(own.permute(0, 3, 1, 2), by.unflatten(0, (3, 3)).permute(3, 2, 0, 1), padding=1)
        for own, by in zip(values, filters.to(values.dtype), strict=True)
    ]
    return torch.stack([own.permute(0, 2, 3, 1) for own in found])


def filter_gradient(values: Tensor, upstream: Tensor, shape: torch.Size) -> Tensor:
    """The gradient in filters of a shape; upstream [T, n, H, W, F]."""
    if shape[1] == 1:
        found = values.flatten(1, 3).transpose(1, 2) @ upstream.flatten(1, 3)
        return found[:, None].to(wide(values))
    size = (shape[3], shape[2], 3, 3)
    each = [
        conv2d_weight(own.permute(0, 3, 1, 2), size, come.permute(0, 3, 1, 2), padding=1)
        for own, come in zip(values, upstream, strict=True)
    ]
    return torch.stack(each).permute(0, 3, 4, 2, 1).flatten(1, 2).to(wide(values))


def pool(values: Tensor, context: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """max-pool 2; which ones were the largest, as the others here want it; Σ y; Σ y²."""
    found = F.max_pool2d(values.flatten(0, 1).permute(0, 3, 1, 2), 2, return_indices=True)
    pooled, places = (x.permute(0, 2, 3, 1).contiguous() for x in found)
    support, sums = values[:, :context], wide(values)
    squares = torch.linalg.vector_norm(support, dim=ALL, dtype=sums).square()
    return (
        pooled.view(*values.shape[:2], *pooled.shape[1:]),
        places,
        support.sum(ALL, dtype=sums),
        squares,
    )


def spread(
    values: Tensor, arriving: Tensor, constant: Tensor, slope: Tensor, places: Tensor, context: int
) -> Tensor:
    """What arrives, [T, n, H // 2, W // 2, C], at the largest; the context + constant + slope y."""
    change = torch.zeros_like(values)
    rows = change.view(len(places), -1, change.shape[-1])
    rows.scatter_(1, places.flatten(1, 2), arriving.reshape(len(places), -1, rows.shape[-1]))
    support = values[:, :context]
    change[:, :context] += torch.addcmul(per_channel(constant), support, per_channel(slope))
    return change


def collect(
    change: Tensor, values: Tensor, slope: Tensor, places: Tensor, context: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For a change of what `spread` gives: those of its arguments, in their order."""
    support, sums = change[:, :context], wide(values)
    to_values = torch.zeros_like(values)
    torch.mul(support, per_channel(slope), out=to_values[:, :context])
    rows = change.view(len(places), -1, change.shape[-1])
    to_arriving = rows.gather(1, places.flatten(1, 2)).view(*values.shape[:2], *places.shape[1:])
    to_slope = (support * values[:, :context]).sum(ALL, dtype=sums)
    return to_values, to_arriving, support.sum(ALL, dtype=sums), to_slope
