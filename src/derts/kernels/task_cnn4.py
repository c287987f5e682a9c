"""CNN4 and head where every task has parameters of its own, for gradients of gradients.

The same function as derts.learners.maml has by vmap, in few passes over the large activations:
max-pool comes before BatchNorm (whose sign goes into the filters), so that of a whole activation
only its sums are taken.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.kernels.task_gradients import convolution, pool
from derts.kernels.task_operations import patches, per_channel
from derts.models.backbones import BLOCKS
from derts.models.embedding import normalised

EPS = 1e-5  # as in torch's BatchNorm


def _block(values: Tensor, filters: Tensor, weight: Tensor, bias: Tensor, context: int) -> Tensor:
    """relu(max-pool 2(norm(convolution))) with filters [T, taps, C, F], norm [T, F]."""
    sign = 2 * (weight >= 0).to(weight.dtype) - 1  # the largest is then what wins
    found = convolution(values, filters * sign[:, None, None])
    pooled, total, squares = pool(found, context)
    count = context * found.shape[2] * found.shape[3]
    mean = total / count
    variance = (squares / count - mean.square()).clamp(min=0)
    scale = sign * weight * torch.rsqrt(variance + EPS)
    shift = bias - mean * scale
    dtype = values.dtype
    return F.relu(pooled * per_channel(scale).to(dtype) + per_channel(shift).to(dtype))


def _pixels(images: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 [T, n, H, W, C] -> 3×3 patches [T, n, H, W, 9C and zeros up to a power of two]."""
    found = patches(normalised(images.flatten(0, 1), dtype).permute(0, 2, 3, 1))
    size = found.shape[-1]
    found = F.pad(found, (0, (1 << (size - 1).bit_length()) - size))
    return found.view(*images.shape[:4], -1)


def task_logits(
    parameters: Mapping[str, Tensor],
    images: Tensor,
    context: int,
    feature_scale: float,
    precision: torch.dtype,
) -> Tensor:
    """uint8 [T, n, H, W, C] -> logits [T, n, way] by each task's parameters [T, …].

    BatchNorm takes its statistics from each task's first `context` images.
    """
    values = _pixels(images, precision)
    for number in range(BLOCKS):
        name = f"backbone.blocks.{number}."
        filters = parameters[f"{name}conv.weight"].permute(0, 3, 4, 2, 1).flatten(1, 2)
        if number == 0:  # of patches, which hold the nine pixels as channels
            filters = filters.flatten(1, 2)[:, None]
            filters = F.pad(filters, (0, 0, 0, values.shape[-1] - filters.shape[2]))
        weight, bias = parameters[f"{name}norm.weight"], parameters[f"{name}norm.bias"]
        values = _block(values, filters, weight, bias, context)
    weight, bias = parameters["head.weight"], parameters["head.bias"]
    features = values.permute(0, 1, 4, 2, 3).flatten(2).to(weight.dtype) * feature_scale
    return torch.baddbmm(bias[:, None], features, weight.transpose(1, 2))
