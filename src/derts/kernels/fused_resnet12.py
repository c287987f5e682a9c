"""ResNet-12 with less memory traffic: every BatchNorm with what follows it is one pass.

The largest activations, those of the first block, have the most of it. There the convolutions of
pixels get their BatchNorm folded in (derts.kernels.patch_sums), one kernel goes from pixels to the
second convolution's input, and the shortcut is made by the kernel that ends the block.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.kernels.patch_sums import folded, kernels_know, remember, remembered
from derts.kernels.patches import PIXEL_MEAN, PIXEL_SCALE
from derts.kernels.residual_operations import Norm, ResidualOperations
from derts.models.batch_norm import BatchNorm
from derts.models.resnet12 import SLOPE, ResidualBlock, ResNet12

Layer = tuple[torch.nn.Conv2d, BatchNorm]


def can_fuse_resnet12(backbone: torch.nn.Module) -> TypeGuard[ResNet12]:
    """Whether `fused_resnet12_features` knows the backbone in its present mode."""
    if not isinstance(backbone, ResNet12):
        return False
    norms = [module for module in backbone.modules() if isinstance(module, BatchNorm)]
    return all(
        norm.groups == 1
        and norm.context is None
        and norm.total is None
        and norm.num_features in (16, 32, 64, 128, 256, 512)
        for norm in norms
    )


def fused_resnet12_features(
    backbone: ResNet12,
    images: Tensor,
    operations: ResidualOperations,
    dtype: torch.dtype,
    products: Tensor | None = None,
) -> Tensor:
    """uint8 [n, H, W, C] -> features [n, dim], as `backbone` of the normalised images gives.

    `dtype` is that of the activations; `products`: the images' patch products, where they are
    known.
    """
    first, *others = backbone.blocks
    assert isinstance(first, ResidualBlock)
    if kernels_know(images.shape[1:]):
        values = _first_block(first, images, operations, products)
    else:
        pixels = (images.permute(0, 3, 1, 2).to(dtype) - PIXEL_MEAN) / PIXEL_SCALE
        values = _block(first, pixels, operations)
    for block in others:
        assert isinstance(block, ResidualBlock)
        values = _block(block, values, operations)
    return values.mean((2, 3), dtype=torch.promote_types(dtype, torch.float32))


def _first_block(
    block: ResidualBlock, images: Tensor, operations: ResidualOperations, products: Tensor | None
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
    joined = operations.join_pixels(main, main_norm, prepared, filters[:, :, 1, 1], shift, SLOPE)
    dropped: Tensor = block.drop(joined)
    return dropped


def _block(block: ResidualBlock, values: Tensor, operations: ResidualOperations) -> Tensor:
    layers, (conv, norm) = _layers(block)
    shortcut = _conv(conv, values)
    shortcut_norm = _norm(norm, shortcut, operations)
    main, main_norm = _convolved(values, layers, operations)
    joined = operations.join(main, main_norm, shortcut, shortcut_norm, SLOPE)
    dropped: Tensor = block.drop(joined)
    return dropped


def _convolved(
    values: Tensor, layers: list[Layer], operations: ResidualOperations
) -> tuple[Tensor, Norm]:
    """The layers, with leaky between them; the last norm is not applied but given."""
    *before, (last, last_norm) = layers
    for conv, norm in before:
        values = _conv(conv, values)
        values = operations.norm_leaky(values, _norm(norm, values, operations), SLOPE)
    values = _conv(last, values)
    return values, _norm(last_norm, values, operations)


def _layers(block: ResidualBlock) -> tuple[list[Layer], Layer]:
    """Convolutions with their norms: of the main branch, of the shortcut."""
    main = [_layer(*both) for both in zip(block.convs, block.norms, strict=True)]
    return main, _layer(*block.shortcut)


def _layer(conv: torch.nn.Module, norm: torch.nn.Module) -> Layer:
    assert isinstance(conv, torch.nn.Conv2d)
    assert isinstance(norm, BatchNorm)
    return conv, norm


def _conv(conv: torch.nn.Conv2d, values: Tensor) -> Tensor:
    return F.conv2d(values, conv.weight.to(values.dtype), padding=conv.padding)


def _norm(norm: BatchNorm, values: Tensor, operations: ResidualOperations) -> Norm:
    if norm.training:
        mean, variance = operations.moments(values)
        remember(norm, mean, variance, values.numel() // values.shape[1])
    else:
        mean, variance = remembered(norm)
    return Norm(norm.weight, norm.bias, mean, variance, norm.eps, norm.training)
