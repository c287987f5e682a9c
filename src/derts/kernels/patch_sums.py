"""BatchNorm behind a convolution of pixels, made part of the convolution.

Its statistics follow from the image patches' mean and second moments: with y = w·p,
mean(y) = w·mean(p) and mean(y²) = wᵀ·mean(p pᵀ)·w. So they are known before the convolution is
done, and no kernel needs to write what comes out of it only to normalise it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from derts.data.table import Table
from derts.models.batch_norm import BatchNorm
from derts.models.pieces import Norm

if TYPE_CHECKING:
    from derts.kernels.functions import KernelOperations

IMAGES_AT_ONCE = 2048
MOST_BYTES = 2 << 30  # for what is known of every image of a table


def kernels_read(image_shape: Sequence[int]) -> bool:
    """Whether kernels read pixels of images [height, width, channels]."""
    height, width, channels = image_shape
    return height % 2 == 0 and width % 2 == 0 and channels <= 3


def is_plain(norm: BatchNorm) -> bool:
    """Whether a BatchNorm takes its statistics over the whole batch of this process."""
    return norm.context is None and norm.total is None


class PatchSums:
    """Patch products of every image of a table, made once: a batch's are sums of them.

    sums  [images, 9C + 1, 9C + 1]
    """

    def __init__(self, table: Table, operations: KernelOperations) -> None:
        self.table = table
        channels = table.item_shape[2]
        parts = torch.arange(len(table), device=table.device).split(IMAGES_AT_ONCE)
        self.sums = torch.cat(
            [
                operations.image_patch_products(operations.prepare(table.gather(part)), channels)
                for part in parts
            ]
        )

    def of(self, indices: Tensor) -> Tensor:
        """Patch products of the images at indices [...] together, float64 [9C + 1, 9C + 1]."""
        return self.sums.index_select(0, indices.flatten()).sum(0, dtype=torch.float64)

    @staticmethod
    def worthwhile(table: Table) -> bool:
        """Whether they take little memory."""
        return len(table) * (9 * table.item_shape[2] + 1) ** 2 * 4 <= MOST_BYTES


def folded(
    norm: BatchNorm, weight: Tensor, products: Tensor | None, pixels: int
) -> tuple[Tensor, Tensor]:
    """Filters like weight [F, C, 3, 3], and a shift [F], that are the convolution with its norm.

    Training wants the patch products of the batch and its number of pixels.
    """
    if norm.training:
        assert products is not None
        # in float64, for a variance may be a small difference of large products
        moments, filters = products.double() / pixels, weight.flatten(1).double()
        patch_mean = moments[-1, :-1]
        spread = moments[:-1, :-1] - patch_mean.outer(patch_mean)
        mean = (filters @ patch_mean).to(weight.dtype)
        variance = ((filters @ spread) * filters).sum(1).to(weight.dtype)
        norm.move_statistics(mean.detach(), variance.detach() * _unbiased(pixels))
    else:
        mean, variance = _running(norm)
    scale = norm.weight * torch.rsqrt(variance + norm.eps)
    return weight * scale[:, None, None, None], norm.bias - mean * scale


def norm_of(norm: BatchNorm, values: Tensor, operations: KernelOperations) -> Norm:
    """A BatchNorm with the statistics for values [n, C, H, W]: theirs in training, else running."""
    if norm.training:
        mean, variance = operations.moments(values)
        norm.move_statistics(mean, variance * _unbiased(values.numel() // values.shape[1]))
    else:
        mean, variance = _running(norm)
    return Norm(norm.weight, norm.bias, mean, variance, norm.eps, norm.training)


def _running(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean, norm.running_var


def _unbiased(count: int) -> float:
    return count / max(count - 1, 1)
