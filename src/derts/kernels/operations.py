"""The kernels as differentiable operations, and the same operations in plain torch."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.kernels.common_operations import CommonOperations, FusedCommon, PlainCommon
from derts.kernels.patches import (
    PIXEL_MEAN,
    PIXEL_SCALE,
    filters_of_rows,
    gradients_of_filters,
)


class Operations(CommonOperations, Protocol):
    """What a fused CNN4 is made of."""

    def conv_relu_pool(self, prepared: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        """[n, F, H/2, W/2], channels last; weight [F, C, 3, 3], shift [F]."""

    def norm_relu_pool(
        self, values: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor,
        eps: float, batch: bool,
    ) -> Tensor:  # fmt: skip
        """[n, F, H, W] -> [n, F, H // 2, W // 2]; `batch`: mean and variance are those of values.

        The gradient in values then includes the way through them.
        """


class PlainOperations(PlainCommon):
    """In torch, at the precision of the parameters: what the kernels are compared with."""

    def conv_relu_pool(self, prepared: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        values = F.conv2d(prepared.to(weight.dtype), weight, shift, padding=1)
        return F.max_pool2d(F.relu(values), 2)

    def norm_relu_pool(
        self, values: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor,
        eps: float, batch: bool,
    ) -> Tensor:  # fmt: skip
        known = (None, None) if batch else (mean, variance)
        normed = F.batch_norm(values, known[0], known[1], weight, bias, training=batch, eps=eps)
        return F.max_pool2d(F.relu(normed), 2)


class _ConvReluPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, framed: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        from derts.kernels import pixels

        keep = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        pooled, winner = pixels.forward(
            framed, filters_of_rows(weight), shift.float(), keep, PIXEL_MEAN, PIXEL_SCALE
        )
        if keep:
            ctx.save_for_backward(framed, winner)
        ctx.shape = weight.shape
        return pooled.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[None, Tensor, Tensor]:
        from derts.kernels import pixels

        framed, winner = ctx.saved_tensors
        arriving = upstream[0].permute(0, 2, 3, 1).to(torch.bfloat16).contiguous()
        found = pixels.backward(framed, arriving, winner, PIXEL_MEAN, PIXEL_SCALE)
        return None, *gradients_of_filters(found, ctx.shape)


class _NormReluPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor,
        eps: float, batch: bool,
    ) -> Tensor:  # fmt: skip
        from derts.kernels import norm_pool

        rows = values.permute(0, 2, 3, 1).contiguous()
        inverse = torch.rsqrt(variance + eps)
        scale = weight * inverse
        keep = any(ctx.needs_input_grad)
        pooled, winning, winner = norm_pool.forward(rows, scale, bias - mean * scale, keep)
        if keep:
            ctx.save_for_backward(rows, winning, winner, scale, inverse, mean)
        ctx.batch = batch
        return pooled.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor | None, ...]:
        from derts.kernels import norm_pool

        rows, winning, winner, scale, inverse, mean = ctx.saved_tensors
        arriving = upstream[0].permute(0, 2, 3, 1).to(torch.bfloat16).contiguous()
        total, products = norm_pool.backward_sums(arriving, winning, winner)
        to_weight = (products - mean * total) * inverse
        slope = constant = None
        if ctx.batch:
            each = rows.numel() // rows.shape[-1]
            slope = -scale * inverse * to_weight / each
            constant = -scale * total / each - slope * mean
        change = norm_pool.backward(rows, arriving, winner, scale, slope, constant)
        return change.permute(0, 3, 1, 2), to_weight, total, None, None, None, None


class FusedOperations(FusedCommon):
    """By the kernels, in bfloat16 with float32 sums."""

    def conv_relu_pool(self, prepared: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        pooled: Tensor = _ConvReluPool.apply(  # type: ignore[no-untyped-call]
            prepared, weight, shift
        )
        return pooled

    def norm_relu_pool(
        self, values: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor,
        eps: float, batch: bool,
    ) -> Tensor:  # fmt: skip
        pooled: Tensor = _NormReluPool.apply(  # type: ignore[no-untyped-call]
            values, weight, bias, mean, variance, eps, batch
        )
        return pooled
