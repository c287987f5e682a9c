"""ResNet-12 with less memory traffic: every BatchNorm with what follows it is one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.kernels.operations import PIXEL_MEAN, PIXEL_SCALE
from derts.kernels.residual_operations import Norm, ResidualOperations
from derts.models.batch_norm import BatchNorm
from derts.models.fused_cnn4 import remember, remembered
from derts.models.resnet12 import SLOPE, ResidualBlock, ResNet12

WIDE = 8  # channels that a convolution on tensor cores wants a multiple of


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
    backbone: ResNet12, images: Tensor, operations: ResidualOperations, dtype: torch.dtype
) -> Tensor:
    """uint8 [n, H, W, C] -> features [n, dim], as `backbone` of the normalised images gives.

    `dtype` is that of the activations.
    """
    values = _patches((images.to(dtype) - PIXEL_MEAN) / PIXEL_SCALE)
    for number, block in enumerate(backbone.blocks):
        assert isinstance(block, ResidualBlock)
        conv = _conv_of_patches if number == 0 else _conv
        values = _block(block, values, operations, conv)
    return values.mean((2, 3), dtype=torch.promote_types(dtype, torch.float32))


def _patches(pixels: Tensor) -> Tensor:
    """[n, H, W, C] -> [n, 9C and zeros, H, W], channels last: each pixel's 3×3 neighbourhood.

    On so few channels a 3×3 convolution uses a GPU badly; on these it is a matrix product.
    """
    height, width, channels = pixels.shape[1:]
    framed = F.pad(pixels, (0, 0, 1, 1, 1, 1))
    parts = [framed[:, y : y + height, x : x + width] for y in range(3) for x in range(3)]
    missing = -9 * channels % WIDE
    if missing:
        parts.append(pixels.new_zeros(1).expand(*pixels.shape[:3], missing))
    return torch.cat(parts, 3).permute(0, 3, 1, 2)


def _block(
    block: ResidualBlock,
    values: Tensor,
    operations: ResidualOperations,
    first_conv: Callable[[torch.nn.Conv2d, Tensor], Tensor],
) -> Tensor:
    """`first_conv` makes the convolutions of the block's input."""
    conv, norm = block.shortcut
    assert isinstance(conv, torch.nn.Conv2d)
    assert isinstance(norm, BatchNorm)
    shortcut = first_conv(conv, values)
    shortcut_norm = _norm(norm, shortcut, operations)
    main = values
    for number, (conv, norm) in enumerate(zip(block.convs, block.norms, strict=True)):
        assert isinstance(conv, torch.nn.Conv2d)
        assert isinstance(norm, BatchNorm)
        main = _conv(conv, main) if number else first_conv(conv, main)
        main_norm = _norm(norm, main, operations)
        if number < 2:
            main = operations.norm_leaky(main, main_norm, SLOPE)
    joined = operations.join(main, main_norm, shortcut, shortcut_norm, SLOPE)
    dropped: Tensor = block.drop(joined)
    return dropped


def _conv(conv: torch.nn.Conv2d, values: Tensor) -> Tensor:
    return F.conv2d(values, conv.weight.to(values.dtype), padding=conv.padding)


def _conv_of_patches(conv: torch.nn.Conv2d, patches: Tensor) -> Tensor:
    """The convolution, 3×3 or 1×1, of the pixels that `_patches` was made of."""
    weight = conv.weight.to(patches.dtype)
    if weight.shape[2] == 1:
        weight = F.pad(weight, (1, 1, 1, 1))
    flat = weight.permute(0, 2, 3, 1).flatten(1)  # [F, 9C], as the patches are ordered
    flat = F.pad(flat, (0, patches.shape[1] - flat.shape[1]))
    return F.conv2d(patches, flat[:, :, None, None])


def _norm(norm: BatchNorm, values: Tensor, operations: ResidualOperations) -> Norm:
    if norm.training:
        mean, variance = operations.moments(values)
        remember(norm, mean, variance, values.numel() // values.shape[1])
    else:
        mean, variance = remembered(norm)
    return Norm(norm.weight, norm.bias, mean, variance, norm.eps, norm.training)
