"""ResNet-12 with less memory traffic: every BatchNorm with what follows it is one pass.

The largest activations, those of the first block, have the most of it. There the convolutions of
pixels get their BatchNorm folded in (derts.kernels.patch_sums), one kernel goes from pixels to the
second convolution's input, and the shortcut is made by the kernel that ends the block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.kernels.patch_sums import Norm, folded, is_plain, kernels_read, norm_of
from derts.models.batch_norm import BatchNorm
from derts.models.embedding import normalised
from derts.models.resnet12 import SLOPE, ResidualBlock, ResNet12

if TYPE_CHECKING:
    from derts.kernels.functions import KernelOperations

Layer = tuple[torch.nn.Conv2d, BatchNorm]


def can_fuse_resnet12(backbone: torch.nn.Module) -> TypeGuard[ResNet12]:
    """Whether `fused_resnet12` knows the backbone in its present mode."""
    if not isinstance(backbone, ResNet12):
        return False
    norms = [module for module in backbone.modules() if isinstance(module, BatchNorm)]
    widths = (16, 32, 64, 128, 256, 512)
    return all(is_plain(norm) and norm.num_features in widths for norm in norms)


def fused_resnet12(
    backbone: ResNet12,
    images: Tensor,
    operations: KernelOperations,
    dtype: torch.dtype,
    products: Tensor | None = None,
) -> Tensor:
    """uint8 [n, H, W, C] -> features [n, dim], as `backbone` of the normalised images gives.

    `dtype` is that of the activations; `products`: the images' patch products, where they are
    known.
    """
    first, *others = backbone.blocks
    assert isinstance(first, ResidualBlock)
    if kernels_read(images.shape[1:]):
        values = _first_block(first, images, operations, products)
    else:
        values = _block(first, normalised(images, dtype), operations)
    for block in others:
        assert isinstance(block, ResidualBlock)
        values = _block(block, values, operations)
    return values.mean((2, 3), dtype=torch.promote_types(dtype, torch.float32))


def _first_block(
    block: ResidualBlock, images: Tensor, operations: KernelOperations, products: Tensor | None
) -> Tensor:
    """The same as `_block` of the normalised images."""
    ((conv, norm), *layers), (shortcut_conv, shortcut_norm) = _layers(block)
    prepared = operations.prepare(images)
    if products is None and norm.training:
        products = operations.patch_products(prepared, images.shape[3])
    pixels = images.shape[0] * images.shape[1] * images.shape[2]
    filters, shift = folded(norm, conv.weight, products, pixels)
    main = operations.conv_leaky(prepared, filters, shift, SLOPE)
    main, main_norm = _convolved(main, layers, operations)
    centre = F.pad(shortcut_conv.weight, (1, 1, 1, 1))  # a 1×1 filter is a 3×3 one
    filters, shift = folded(shortcut_norm, centre, products, pixels)
    return operations.join_pixels(main, main_norm, prepared, filters[:, :, 1, 1], shift, SLOPE)


def _block(block: ResidualBlock, values: Tensor, operations: KernelOperations) -> Tensor:
    layers, (conv, norm) = _layers(block)
    shortcut = _conv(conv, values)
    shortcut_norm = norm_of(norm, shortcut, operations)
    main, main_norm = _convolved(values, layers, operations)
    return operations.join(main, main_norm, shortcut, shortcut_norm, SLOPE)


def _convolved(
    values: Tensor, layers: list[Layer], operations: KernelOperations
) -> tuple[Tensor, Norm]:
    """The layers, with leaky between them; the last norm is not applied but given."""
    *before, (last, last_norm) = layers
    for conv, norm in before:
        values = _conv(conv, values)
        values = operations.norm_leaky(values, norm_of(norm, values, operations), SLOPE)
    values = _conv(last, values)
    return values, norm_of(last_norm, values, operations)


def _layers(block: ResidualBlock) -> tuple[list[Layer], Layer]:
    """Convolutions with their norms: of the main branch, of the shortcut."""
    main = list(zip(block.convs, block.norms, strict=True))
    return cast(list[Layer], main), cast(Layer, tuple(block.shortcut))


def _conv(conv: torch.nn.Conv2d, values: Tensor) -> Tensor:
    return F.conv2d(values, conv.weight.to(values.dtype), padding=conv.padding)
