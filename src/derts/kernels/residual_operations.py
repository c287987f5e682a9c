"""What a fused ResNet-12 is made of, by kernels and in plain torch."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Norm(NamedTuple):
    """A BatchNorm: weight and bias [C], the mean and variance [C] that it normalises by.

    `batch`: they are those of the values, so that gradients flow through them too.
    """

    weight: Tensor
    bias: Tensor
    mean: Tensor
    variance: Tensor
    eps: float
    batch: bool


class ResidualOperations(Protocol):
    """Values are [n, C, H, W], channels last."""

    def norm_leaky(self, values: Tensor, norm: Norm, slope: float) -> Tensor:
        """leaky(norm(values))."""

    def join(
        self, main: Tensor, main_norm: Norm, shortcut: Tensor, shortcut_norm: Norm, slope: float
    ) -> Tensor:
        """max-pool 2 of leaky(norm(main) + norm(shortcut))."""

    def moments(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and biased variance per channel, without a graph."""


def _plain_norm(values: Tensor, norm: Norm) -> Tensor:
    known = (None, None) if norm.batch else (norm.mean, norm.variance)
    return F.batch_norm(
        values, known[0], known[1], norm.weight, norm.bias, training=norm.batch, eps=norm.eps
    )


class PlainResidual:
    """In torch: what the kernels are compared with."""

    def norm_leaky(self, values: Tensor, norm: Norm, slope: float) -> Tensor:
        return F.leaky_relu(_plain_norm(values, norm), slope)

    def join(
        self, main: Tensor, main_norm: Norm, shortcut: Tensor, shortcut_norm: Norm, slope: float
    ) -> Tensor:
        both = _plain_norm(main, main_norm) + _plain_norm(shortcut, shortcut_norm)
        return F.max_pool2d(F.leaky_relu(both, slope), 2)

    def moments(self, values: Tensor) -> tuple[Tensor, Tensor]:
        variance, mean = torch.var_mean(values.detach(), (0, 2, 3), correction=0)
        return mean, variance


def _rows(values: Tensor) -> Tensor:
    """[n, C, H, W] -> [n, H, W, C], bfloat16, contiguous."""
    return values.permute(0, 2, 3, 1).to(torch.bfloat16).contiguous()


def _folded(weight: Tensor, mean: Tensor, variance: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Scale, and 1 / standard deviation."""
    inverse = torch.rsqrt(variance + eps)
    return weight * inverse, inverse


def _from_batch(
    rows: Tensor, scale: Tensor, inverse: Tensor, mean: Tensor, total: Tensor, to_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """What each value's gradient gets through the batch's mean and variance: factor, constant."""
    each = rows.numel() // rows.shape[-1]
    factor = -scale * inverse * to_weight / each
    return factor, -scale * total / each - factor * mean


class _NormLeaky(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor,
        eps: float, batch: bool, slope: float,
    ) -> Tensor:  # fmt: skip
        from derts.kernels import residual

        rows = _rows(values)
        scale, inverse = _folded(weight, mean, variance, eps)
        shift = bias - mean * scale
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(rows, scale, shift, inverse, mean)
        ctx.batch, ctx.slope = batch, slope
        return residual.leaky(rows, scale, shift, slope).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor | None, ...]:
        from derts.kernels import residual

        rows, scale, shift, inverse, mean = ctx.saved_tensors
        arriving = _rows(upstream[0])
        total, products = residual.leaky_sums(rows, arriving, scale, shift, ctx.slope)
        to_weight = (products - mean * total) * inverse
        more = _from_batch(rows, scale, inverse, mean, total, to_weight) if ctx.batch else None
        change = residual.leaky_backward(rows, arriving, scale, shift, more, ctx.slope)
        return change.permute(0, 3, 1, 2), to_weight, total, *[None] * 5


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, main: Tensor, shortcut: Tensor, main_weight: Tensor, main_bias: Tensor,
        shortcut_weight: Tensor, shortcut_bias: Tensor, main_norm: Norm, shortcut_norm: Norm,
        slope: float,
    ) -> Tensor:  # fmt: skip
        from derts.kernels import residual

        first, second = _rows(main), _rows(shortcut)
        norms = (main_norm, shortcut_norm)
        parts = [_folded(n.weight, n.mean, n.variance, n.eps) for n in norms]
        scales = torch.stack([scale for scale, _ in parts])
        means = torch.stack([n.mean for n in norms])
        shift = main_bias + shortcut_bias - (means * scales).sum(0)
        keep = any(ctx.needs_input_grad)
        pooled, winning, winner = residual.join(first, second, scales, shift, slope, keep)
        if keep:
            inverses = torch.stack([inverse for _, inverse in parts])
            ctx.save_for_backward(first, second, scales, inverses, means, winning, winner)
        ctx.batch, ctx.slope = main_norm.batch, slope
        return pooled.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor | None, ...]:
        from derts.kernels import residual

        main, shortcut, scales, inverses, means, winning, winner = ctx.saved_tensors
        arriving = _rows(upstream[0])
        total, *products = residual.join_sums(arriving, winning, winner, ctx.slope)
        changes, to_weights = [], []
        for number, rows in enumerate((main, shortcut)):
            scale, inverse, mean = scales[number], inverses[number], means[number]
            to_weight = (products[number] - mean * total) * inverse
            more = _from_batch(rows, scale, inverse, mean, total, to_weight) if ctx.batch else None
            changes.append(residual.join_backward(rows, arriving, winner, scale, more, ctx.slope))
            to_weights.append(to_weight)
        main_change, shortcut_change = (change.permute(0, 3, 1, 2) for change in changes)
        to_main, to_shortcut = to_weights
        return main_change, shortcut_change, to_main, total, to_shortcut, total, *[None] * 3


class FusedResidual:
    """By the kernels, in bfloat16 with float32 sums."""

    def norm_leaky(self, values: Tensor, norm: Norm, slope: float) -> Tensor:
        found: Tensor = _NormLeaky.apply(values, *norm, slope)  # type: ignore[no-untyped-call]
        return found

    def join(
        self, main: Tensor, main_norm: Norm, shortcut: Tensor, shortcut_norm: Norm, slope: float
    ) -> Tensor:
        found: Tensor = _Join.apply(  # type: ignore[no-untyped-call]
            main, shortcut, main_norm.weight, main_norm.bias, shortcut_norm.weight,
            shortcut_norm.bias, main_norm, shortcut_norm, slope,
        )  # fmt: skip
        return found

    def moments(self, values: Tensor) -> tuple[Tensor, Tensor]:
        from derts.kernels import norm_pool

        return norm_pool.moments(_rows(values.detach()))
