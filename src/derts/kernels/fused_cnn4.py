"""CNN4 with far less memory traffic: the same function of its parameters, computed otherwise.

The first BatchNorm becomes part of its convolution (derts.kernels.patch_sums), and one kernel goes
from pixels to the pooled activation. The other blocks are a convolution and one fused pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.kernels.patch_sums import folded, is_plain, kernels_read, norm_of
from derts.models.cnn4 import CNN4, ConvBlock

if TYPE_CHECKING:
    from derts.kernels.functions import KernelOperations


def can_fuse_cnn4(backbone: torch.nn.Module, image_shape: Sequence[int]) -> TypeGuard[CNN4]:
    """Whether `fused_cnn4` knows the backbone, in its present mode, and the images' shape."""
    if not isinstance(backbone, CNN4) or not kernels_read(image_shape):
        return False
    blocks = _blocks(backbone)
    return blocks[0].conv.out_channels in (16, 32, 64, 128) and all(
        is_plain(block.norm) for block in blocks
    )


def fused_cnn4(
    backbone: CNN4, images: Tensor, operations: KernelOperations, products: Tensor | None = None
) -> Tensor:
    """uint8 [n, H, W, C] -> features [n, dim], as `backbone` of the normalised images gives.

    `products`: the images' patch products, where they are known.
    """
    first, *others = _blocks(backbone)
    prepared = operations.prepare(images)
    if products is None and first.norm.training:
        products = operations.patch_products(prepared, images.shape[3])
    pixels = images.shape[0] * images.shape[1] * images.shape[2]
    filters, shift = folded(first.norm, first.conv.weight, products, pixels)
    values = operations.conv_relu_pool(prepared, filters, shift)
    for block in others:
        values = F.conv2d(values, block.conv.weight.to(values.dtype), padding=1)
        values = operations.norm_relu_pool(values, norm_of(block.norm, values, operations))
    return values.flatten(1)


def _blocks(backbone: CNN4) -> list[ConvBlock]:
    return [block for block in backbone.blocks if isinstance(block, ConvBlock)]
