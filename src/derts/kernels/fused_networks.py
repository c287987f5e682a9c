"""CNN4 and ResNet-12 with less memory traffic: the same functions of their parameters.

A BatchNorm behind a convolution of pixels becomes part of it (derts.kernels.patch_sums), and one
kernel goes from pixels to CNN4's first pooled activation, or to the input of ResNet-12's second
convolution, whose shortcut is made by the kernel that ends the block. Every other BatchNorm is one
pass with what follows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeGuard, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.kernels.patch_sums import folded, is_plain, kernels_read, norm_of
from derts.models.backbones import CNN4, SLOPE, ConvBlock, ResidualBlock, ResNet12
from derts.models.batch_norm import BatchNorm
from derts.models.embedding import normalised
from derts.models.pieces import Layer, Norm, in_pieces, is_cut

if TYPE_CHECKING:
    from derts.kernels.functions import KernelOperations


def can_fuse(backbone: torch.nn.Module, image_shape: Sequence[int]) -> TypeGuard[CNN4 | ResNet12]:
    """Whether `fused` knows the backbone, in its present mode, and the images' shape."""
    if not isinstance(backbone, CNN4 | ResNet12):
        return False
    norms = [module for module in backbone.modules() if isinstance(module, BatchNorm)]
    widths = (16, 32, 64, 128) if isinstance(backbone, CNN4) else (16, 32, 64, 128, 256, 512)
    plain = all(is_plain(norm) and norm.num_features in widths for norm in norms)
    return plain and (isinstance(backbone, ResNet12) or kernels_read(image_shape))


def fused(
    backbone: CNN4 | ResNet12,
    images: Tensor,
    operations: KernelOperations,
    products: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """uint8 [n, H, W, C] -> features [n, dim], as `backbone` of the normalised images gives.

    `products`: the images' patch products, where they are known; `dtype`: that of activations.
    """
    if isinstance(backbone, CNN4):
        return _cnn4(backbone, images, operations, products)
    first, *others = cast(list[ResidualBlock], list(backbone.blocks))
    if kernels_read(images.shape[1:]) and not is_cut(first.layers()[0], [images]):
        values = _first_block(first, images, operations, products)
    else:
        values = _block(first, normalised(images, dtype), operations)
    for block in others:
        values = _block(block, values, operations)
    return values.mean((2, 3), dtype=torch.promote_types(dtype, torch.float32))


def _prepared(
    images: Tensor, norm: BatchNorm, operations: KernelOperations, products: Tensor | None
) -> tuple[Tensor, Tensor | None, int]:
    """Pixels as kernels read them, patch products where a norm wants any, and how many pixels."""
    prepared = operations.prepare(images)
    if products is None and norm.training:
        products = operations.patch_products(prepared, images.shape[3])
    return prepared, products, images[..., 0].numel()


def _cnn4(
    backbone: CNN4, images: Tensor, operations: KernelOperations, products: Tensor | None
) -> Tensor:
    first, *others = cast(list[ConvBlock], list(backbone.blocks))
    prepared, products, pixels = _prepared(images, first.norm, operations, products)
    filters, shift = folded(first.norm, first.conv.weight, products, pixels)
    values = operations.conv_relu_pool(prepared, filters, shift)
    for block in others:
        layers = [(block.conv, block.norm)]
        values = _conv_norm(layers, [values], operations, operations.norm_relu_pool)
    return values.flatten(1)


def _first_block(
    block: ResidualBlock, images: Tensor, operations: KernelOperations, products: Tensor | None
) -> Tensor:
    """The same as `_block` of the normalised images."""
    ((conv, norm), *layers, last), (shortcut_conv, shortcut_norm) = block.layers()
    prepared, products, pixels = _prepared(images, norm, operations, products)
    filters, shift = folded(norm, conv.weight, products, pixels)
    main = operations.conv_leaky(prepared, filters, shift, SLOPE)
    main = _conv(last[0], _leaky(main, layers, operations))
    main_norm = norm_of(last[1], main, operations)
    centre = F.pad(shortcut_conv.weight, (1, 1, 1, 1))  # a 1×1 filter is a 3×3 one
    filters, shift = folded(shortcut_norm, centre, products, pixels)
    return operations.join_pixels(main, main_norm, prepared, filters[:, :, 1, 1], shift, SLOPE)


def _block(block: ResidualBlock, values: Tensor, operations: KernelOperations) -> Tensor:
    (*layers, last), shortcut = block.layers()

    def join(main: Tensor, other: Tensor, main_norm: Norm, other_norm: Norm) -> Tensor:
        return operations.join(main, main_norm, other, other_norm, SLOPE)

    main = _leaky(values, layers, operations)
    return _conv_norm([last, shortcut], [main, values], operations, join)


def _leaky(values: Tensor, layers: list[Layer], operations: KernelOperations) -> Tensor:
    """The layers, with leaky behind each."""
    for layer in layers:
        values = _conv_norm(
            [layer], [values], operations, partial(operations.norm_leaky, slope=SLOPE)
        )
    return values


def _conv_norm(
    layers: list[Layer],
    inputs: list[Tensor],
    operations: KernelOperations,
    finish: Callable[..., Tensor],
) -> Tensor:
    """`finish` of the layers' convolutions, and of their norms, which it applies."""
    if is_cut(layers, inputs):
        return in_pieces(layers, inputs, lambda x, n: finish(*x, *n), operations.moments)
    values = [_conv(conv, x) for (conv, _), x in zip(layers, inputs, strict=True)]
    norms = [norm_of(norm, x, operations) for (_, norm), x in zip(layers, values, strict=True)]
    return finish(*values, *norms)


def _conv(conv: torch.nn.Conv2d, values: Tensor) -> Tensor:
    return F.conv2d(values, conv.weight.to(values.dtype), padding=conv.padding)
