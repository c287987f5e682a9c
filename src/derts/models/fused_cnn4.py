"""CNN4 with far less memory traffic: the same function of its parameters, computed otherwise.

BatchNorm's statistics of the first convolution follow from the image patches' mean and second
moments: with y = w·p, mean(y) = w·mean(p) and mean(y²) = wᵀ·mean(p pᵀ)·w. So they are known
before the convolution is done, BatchNorm becomes part of its weights, and one kernel goes from
pixels to the pooled activation. The other blocks are a convolution and one fused pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.data.table import ImageTable
from derts.kernels.operations import Operations
from derts.models.batch_norm import BatchNorm
from derts.models.cnn4 import CNN4, ConvBlock

IMAGES_AT_ONCE = 2048
MOST_BYTES = 2 << 30  # for what is known of every image of a table


def can_fuse(backbone: torch.nn.Module, image_shape: Sequence[int]) -> TypeGuard[CNN4]:
    """Whether `fused_features` knows the backbone, in its present mode, and the images' shape."""
    if not isinstance(backbone, CNN4):
        return False
    height, width, channels = image_shape
    filters = backbone.blocks[0].conv.out_channels  # type: ignore[union-attr]
    norms = [block.norm for block in backbone.blocks]
    return (
        height % 2 == 0
        and width % 2 == 0
        and channels <= 3
        and filters in (16, 32, 64, 128)
        and all(norm.groups == 1 for norm in norms)  # type: ignore[union-attr]
        and all(norm.context is None and norm.total is None for norm in norms)  # type: ignore[union-attr]
    )


class PatchSums:
    """Patch products of every image of a table, made once: a batch's are sums of them.

    sums  [images, 9C + 1, 9C + 1]
    """

    def __init__(self, table: ImageTable, operations: Operations) -> None:
        self.table = table
        channels = table.image_shape[2]
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
    def worthwhile(table: ImageTable) -> bool:
        """Whether they take little memory."""
        return len(table) * (9 * table.image_shape[2] + 1) ** 2 * 4 <= MOST_BYTES


def fused_features(
    backbone: CNN4, images: Tensor, operations: Operations, products: Tensor | None = None
) -> Tensor:
    """uint8 [n, H, W, C] -> features [n, dim], as `backbone` of the normalised images gives.

    `products`: the images' patch products, where they are known.
    """
    first, *others = backbone.blocks
    assert isinstance(first, ConvBlock)
    values = _first_block(first, images, operations, products)
    for block in others:
        assert isinstance(block, ConvBlock)
        weight = block.conv.weight.to(values.dtype)
        values = _block(block.norm, F.conv2d(values, weight, padding=1), operations)
    return values.flatten(1)


def _first_block(
    block: ConvBlock, images: Tensor, operations: Operations, products: Tensor | None
) -> Tensor:
    norm, weight = block.norm, block.conv.weight
    prepared = operations.prepare(images)
    if norm.training:
        count = images.shape[0] * images.shape[1] * images.shape[2]
        if products is None:
            products = operations.patch_products(prepared, images.shape[3])
        products = products / count
        patch_mean = products[-1, :-1]
        spread = (products[:-1, :-1] - patch_mean.outer(patch_mean)).to(weight.dtype)
        filters = weight.flatten(1)
        mean = filters @ patch_mean.to(weight.dtype)
        variance = ((filters @ spread) * filters).sum(1)
        remember(norm, mean.detach(), variance.detach(), count)
    else:
        mean, variance = remembered(norm)
    scale = norm.weight * torch.rsqrt(variance + norm.eps)
    folded = weight * scale[:, None, None, None]
    return operations.conv_relu_pool(prepared, folded, norm.bias - mean * scale)


def _block(norm: BatchNorm, values: Tensor, operations: Operations) -> Tensor:
    if norm.training:
        mean, variance = operations.moments(values)
        remember(norm, mean, variance, values.numel() // values.shape[1])
    else:
        mean, variance = remembered(norm)
    return operations.norm_relu_pool(
        values, norm.weight, norm.bias, mean, variance, norm.eps, norm.training
    )


def remembered(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """Running mean and variance."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return norm.running_mean, norm.running_var


@torch.no_grad()
def remember(norm: BatchNorm, mean: Tensor, variance: Tensor, count: int) -> None:
    """Running statistics move as nn.BatchNorm2d moves them."""
    running_mean, running_variance = remembered(norm)
    momentum = norm.momentum or 0.1
    running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    unbiased = variance * (count / max(count - 1, 1))
    running_variance.lerp_(unbiased.to(running_variance.dtype), momentum)
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
