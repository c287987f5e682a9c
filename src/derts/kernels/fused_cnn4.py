"""CNN4 with far less memory traffic: the same function of its parameters, computed otherwise.

The first BatchNorm becomes part of its convolution (derts.kernels.patch_sums), and one kernel goes
from pixels to the pooled activation. The other blocks are a convolution and one fused pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.kernels.operations import Operations
from derts.kernels.patch_sums import folded, kernels_know, remember, remembered
from derts.models.batch_norm import BatchNorm
from derts.models.cnn4 import CNN4, ConvBlock


def can_fuse(backbone: torch.nn.Module, image_shape: Sequence[int]) -> TypeGuard[CNN4]:
    """Whether `fused_features` knows the backbone, in its present mode, and the images' shape."""
    if not isinstance(backbone, CNN4):
        return False
    filters = backbone.blocks[0].conv.out_channels  # type: ignore[union-attr]
    norms = [block.norm for block in backbone.blocks]
    return (
        kernels_know(image_shape)
        and filters in (16, 32, 64, 128)
        and all(norm.groups == 1 for norm in norms)  # type: ignore[union-attr]
        and all(norm.context is None and norm.total is None for norm in norms)  # type: ignore[union-attr]
    )


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
    prepared = operations.prepare(images)
    if products is None and block.norm.training:
        products = operations.patch_products(prepared, images.shape[3])
    pixels = images.shape[0] * images.shape[1] * images.shape[2]
    filters, shift = folded(block.norm, block.conv.weight, products, pixels)
    return operations.conv_relu_pool(prepared, filters, shift)


def _block(norm: BatchNorm, values: Tensor, operations: Operations) -> Tensor:
    if norm.training:
        mean, variance = operations.moments(values)
        remember(norm, mean, variance, values.numel() // values.shape[1])
    else:
        mean, variance = remembered(norm)
    return operations.norm_relu_pool(
        values, norm.weight, norm.bias, mean, variance, norm.eps, norm.training
    )
