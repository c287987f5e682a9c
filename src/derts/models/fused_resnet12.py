"""ResNet-12 with less memory traffic: every BatchNorm with what follows it is one pass."""

from __future__ import annotations

from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.kernels.operations import PIXEL_MEAN, PIXEL_SCALE
from derts.kernels.residual_operations import Norm, ResidualOperations
from derts.models.batch_norm import BatchNorm
from derts.models.fused_cnn4 import remember, remembered
from derts.models.resnet12 import SLOPE, ResidualBlock, ResNet12

WIDE = 8  # channels that a convolution on tensor cores wants at least


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
    pixels = (images.to(dtype) - PIXEL_MEAN) / PIXEL_SCALE
    missing = max(0, WIDE - images.shape[3])
    values = F.pad(pixels, (0, missing)).permute(0, 3, 1, 2)  # channels last
    for block in backbone.blocks:
        assert isinstance(block, ResidualBlock)
        values = _block(block, values, operations)
    return values.mean((2, 3), dtype=torch.promote_types(dtype, torch.float32))


def _block(block: ResidualBlock, values: Tensor, operations: ResidualOperations) -> Tensor:
    conv, norm = block.shortcut
    assert isinstance(conv, torch.nn.Conv2d)
    assert isinstance(norm, BatchNorm)
    shortcut = _conv(conv, values)
    shortcut_norm = _norm(norm, shortcut, operations)
    main = values
    for number, (conv, norm) in enumerate(zip(block.convs, block.norms, strict=True)):
        assert isinstance(conv, torch.nn.Conv2d)
        assert isinstance(norm, BatchNorm)
        main = _conv(conv, main)
        main_norm = _norm(norm, main, operations)
        if number < 2:
            main = operations.norm_leaky(main, main_norm, SLOPE)
    joined = operations.join(main, main_norm, shortcut, shortcut_norm, SLOPE)
    dropped: Tensor = block.drop(joined)
    return dropped


def _conv(conv: torch.nn.Conv2d, values: Tensor) -> Tensor:
    weight = conv.weight.to(values.dtype)
    missing = values.shape[1] - weight.shape[1]
    if missing:  # channels of zeros
        weight = F.pad(weight, (0, 0, 0, 0, 0, missing))
    return F.conv2d(values, weight, padding=conv.padding)


def _norm(norm: BatchNorm, values: Tensor, operations: ResidualOperations) -> Norm:
    if norm.training:
        mean, variance = operations.moments(values)
        remember(norm, mean, variance, values.numel() // values.shape[1])
    else:
        mean, variance = remembered(norm)
    return Norm(norm.weight, norm.bias, mean, variance, norm.eps, norm.training)
