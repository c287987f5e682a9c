"""CNN4 and head where every task has parameters of its own, for gradients of gradients.

The same function as derts.learners.maml has by vmap, in few passes over the large activations:
max-pool comes before BatchNorm (whose sign goes into the filters), so that of a whole activation
only its sums are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.kernels.task_convolution import applied, convolution, patches
from derts.models.cnn4 import BLOCKS
from derts.models.embedding import normalised

ALL = (1, 2, 3)  # images, height and width of a task
EPS = 1e-5  # as in torch's BatchNorm


def _wide(values: Tensor) -> torch.dtype:
    return torch.promote_types(values.dtype, torch.float32)


def _per_channel(values: Tensor) -> Tensor:
    return values[:, None, None, None]


class Pool(torch.autograd.Function):
    """[T, n, H, W, F] -> max-pool 2; Σ y and Σ y² [T, F] of each task's first `context` images."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, context: int) -> tuple[Tensor, Tensor, Tensor]:
        flat = values.flatten(0, 1).permute(0, 3, 1, 2)
        found = F.max_pool2d(flat, 2, return_indices=True)
        pooled, places = (x.permute(0, 2, 3, 1).contiguous() for x in found)
        pooled = pooled.view(*values.shape[:2], *pooled.shape[1:])
        support = values[:, :context]
        total = support.sum(ALL, dtype=_wide(values))
        length = torch.linalg.vector_norm(support, dim=ALL, dtype=_wide(values))
        ctx.save_for_backward(values, places, pooled)
        ctx.context = context
        return pooled, total, length.square()

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor, None]:
        values, places, pooled = ctx.saved_tensors
        arriving, to_total, to_squares = upstream
        fixed = places, pooled.detach(), ctx.context
        return applied(PoolGradient, values, arriving, to_total, 2 * to_squares, *fixed), None


class PoolGradient(torch.autograd.Function):
    """What arrives [T, n, H // 2, W // 2, F], at the winners; on the support constant + slope y."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, arriving: Tensor, constant: Tensor, slope: Tensor,
        places: Tensor, pooled: Tensor, context: int,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(values, slope, places)
        ctx.context = context
        change = torch.empty_like(values)
        change[:, context:] = 0
        dense = _per_channel(constant), _per_channel(slope)
        torch.addcmul(dense[0], values[:, :context], dense[1], out=change[:, :context])
        won = arriving.to(_wide(values), copy=True, memory_format=torch.contiguous_format)
        won[:, :context] += torch.addcmul(dense[0], pooled[:, :context], dense[1])
        rows = change.view(len(places), -1, change.shape[-1])
        rows.scatter_(
            1, places.flatten(1, 2), won.to(values.dtype).view(rows.shape[0], -1, rows.shape[-1])
        )
        return change

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor | None, ...]:
        values, slope, places = ctx.saved_tensors
        change, wide = upstream[0].contiguous(), _wide(values)
        support = change[:, : ctx.context]
        to_values = (
            torch.zeros_like(values) if ctx.context < values.shape[1] else torch.empty_like(values)
        )
        torch.mul(support, _per_channel(slope), out=to_values[:, : ctx.context])
        rows = change.view(len(places), -1, change.shape[-1])
        to_arriving = rows.gather(1, places.flatten(1, 2)).view(
            *values.shape[:2], *places.shape[1:]
        )
        to_slope = (support * values[:, : ctx.context]).sum(ALL, dtype=wide)
        return to_values, to_arriving, support.sum(ALL, dtype=wide), to_slope, None, None, None


def _block(values: Tensor, filters: Tensor, weight: Tensor, bias: Tensor, context: int) -> Tensor:
    """relu(max-pool 2(norm(convolution))) with filters [T, taps, C, F], norm [T, F]."""
    sign = torch.where(weight < 0, -1.0, 1.0).to(weight.dtype)  # the largest is then what wins
    found = convolution(values, filters * sign[:, None, None])
    pooled, total, squares = applied(Pool, found, context)
    count = context * found.shape[2] * found.shape[3]
    mean = total / count
    variance = (squares / count - mean.square()).clamp(min=0)
    scale = sign * weight * torch.rsqrt(variance + EPS)
    shift = bias - mean * scale
    dtype = values.dtype
    return F.relu(pooled * _per_channel(scale).to(dtype) + _per_channel(shift).to(dtype))


def _pixels(images: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 [T, n, H, W, C] -> 3×3 patches [T, n, H, W, 9C and zeros up to a multiple of 8]."""
    rows = normalised(images.flatten(0, 1), dtype).permute(0, 2, 3, 1)
    found = F.pad(patches(rows), (0, -9 * images.shape[-1] % 8))
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
