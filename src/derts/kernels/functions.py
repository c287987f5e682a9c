"""The kernels with their gradients, as autograd functions: bfloat16 with float32 sums.

Only a machine with Triton can import this. The same operations in plain torch, which the kernels
are compared with, are in benchmarks/plain_operations.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.kernels import norm_pool, pixel_conv, pixel_join, pixels, residual
from derts.kernels.patches import filters_of_rows, gradients_of_filters, products_of_patches
from derts.models.pieces import Norm


def rows_of(values: Tensor) -> Tensor:
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


class ConvReluPool(torch.autograd.Function):
    """max-pool 2 of relu(convolution 3×3 of pixels + shift)."""

    @staticmethod
    def forward(ctx: Any, framed: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        keep = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        pooled, winner = pixels.forward(framed, filters_of_rows(weight), shift.float(), keep)
        if keep:
            ctx.save_for_backward(framed, winner)
        ctx.shape = weight.shape
        return pooled.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[None, Tensor, Tensor]:
        framed, winner = ctx.saved_tensors
        found = pixels.backward(framed, rows_of(upstream[0]), winner)
        return None, *gradients_of_filters(found, ctx.shape)


class NormReluPool(torch.autograd.Function):
    """max-pool 2 of relu(norm(values))."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor,
        eps: float, batch: bool,
    ) -> Tensor:  # fmt: skip
        rows = values.permute(0, 2, 3, 1).contiguous()
        scale, inverse = _folded(weight, mean, variance, eps)
        keep = any(ctx.needs_input_grad)
        pooled, winning, winner = norm_pool.forward(rows, scale, bias - mean * scale, keep)
        if keep:
            ctx.save_for_backward(rows, winning, winner, scale, inverse, mean)
        ctx.batch = batch
        return pooled.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor | None, ...]:
        rows, winning, winner, scale, inverse, mean = ctx.saved_tensors
        arriving = rows_of(upstream[0])
        total, products = norm_pool.backward_sums(arriving, winning, winner)
        to_weight = (products - mean * total) * inverse
        more = _from_batch(rows, scale, inverse, mean, total, to_weight) if ctx.batch else None
        change = norm_pool.backward(rows, arriving, winner, scale, more)
        return change.permute(0, 3, 1, 2), to_weight, total, None, None, None, None


class NormLeaky(torch.autograd.Function):
    """leaky(norm(values))."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor,
        eps: float, batch: bool, slope: float,
    ) -> Tensor:  # fmt: skip
        rows = rows_of(values)
        scale, inverse = _folded(weight, mean, variance, eps)
        shift = bias - mean * scale
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(rows, scale, shift, inverse, mean)
        ctx.batch, ctx.slope = batch, slope
        return residual.leaky(rows, scale, shift, slope).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor | None, ...]:
        rows, scale, shift, inverse, mean = ctx.saved_tensors
        arriving = rows_of(upstream[0])
        total, products = residual.leaky_sums(rows, arriving, scale, shift, ctx.slope)
        to_weight = (products - mean * total) * inverse
        more = _from_batch(rows, scale, inverse, mean, total, to_weight) if ctx.batch else None
        change = residual.leaky_backward(rows, arriving, scale, shift, more, ctx.slope)
        return change.permute(0, 3, 1, 2), to_weight, total, *[None] * 5


class Join(torch.autograd.Function):
    """max-pool 2 of leaky(norm(main) + norm(shortcut))."""

    @staticmethod
    def forward(
        ctx: Any, main: Tensor, shortcut: Tensor, main_weight: Tensor, main_bias: Tensor,
        shortcut_weight: Tensor, shortcut_bias: Tensor, main_norm: Norm, shortcut_norm: Norm,
        slope: float,
    ) -> Tensor:  # fmt: skip
        first, second = rows_of(main), rows_of(shortcut)
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
        main, shortcut, scales, inverses, means, winning, winner = ctx.saved_tensors
        arriving = rows_of(upstream[0])
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


class ConvLeaky(torch.autograd.Function):
    """leaky(convolution 3×3 of pixels + shift)."""

    @staticmethod
    def forward(ctx: Any, framed: Tensor, weight: Tensor, shift: Tensor, slope: float) -> Tensor:
        weights, shift = filters_of_rows(weight), shift.float()
        ctx.save_for_backward(framed, weights, shift)
        ctx.shape, ctx.slope = weight.shape, slope
        return pixel_conv.conv_leaky(framed, weights, shift, slope).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor | None, ...]:
        framed, weights, shift = ctx.saved_tensors
        found = pixel_conv.conv_leaky_backward(
            framed, weights, shift, rows_of(upstream[0]), ctx.slope
        )
        return None, *gradients_of_filters(found, ctx.shape), None


class JoinPixels(torch.autograd.Function):
    """max-pool 2 of leaky(norm(main) + convolution 1×1 of pixels + shift)."""

    @staticmethod
    def forward(
        ctx: Any, main: Tensor, framed: Tensor, weight: Tensor, shift: Tensor, main_weight: Tensor,
        main_bias: Tensor, norm: Norm, slope: float,
    ) -> Tensor:  # fmt: skip
        rows = rows_of(main)
        scale, inverse = _folded(main_weight, norm.mean, norm.variance, norm.eps)
        added = main_bias - norm.mean * scale + shift
        colours = F.pad(weight.float().T, (0, 0, 0, 3 - weight.shape[1])).contiguous()
        keep = any(ctx.needs_input_grad)
        pooled, winning, winner = pixel_join.join(rows, framed, scale, colours, added, slope, keep)
        if keep:
            ctx.save_for_backward(rows, framed, scale, inverse, norm.mean, winning, winner)
        ctx.channels, ctx.batch, ctx.slope = weight.shape[1], norm.batch, slope
        return pooled.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor | None, ...]:
        rows, framed, scale, inverse, mean, winning, winner = ctx.saved_tensors
        arriving = rows_of(upstream[0])
        total, products, *colours = pixel_join.join_sums(
            framed, arriving, winning, winner, ctx.slope
        )
        to_norm = (products - mean * total) * inverse
        more = _from_batch(rows, scale, inverse, mean, total, to_norm) if ctx.batch else None
        change = residual.join_backward(rows, arriving, winner, scale, more, ctx.slope)
        to_weight = torch.stack(colours[: ctx.channels], 1)
        return change.permute(0, 3, 1, 2), None, to_weight, total, to_norm, total, None, None


class KernelOperations:
    """What the fused networks are made of.

    Values are [n, C, H, W], channels last, weights [F, C, 3, 3] (`join_pixels`: [F, C]), shifts
    [F]. `prepared` pixels are as `prepare` makes them of uint8 [n, H, W, C], H and W even, C ≤ 3.

    conv_relu_pool  (prepared, weight, shift): max-pool 2 of relu(convolution + shift)
    conv_leaky      (prepared, weight, shift, slope): leaky(convolution + shift)
    """

    prepare = staticmethod(pixels.frame)
    conv_relu_pool: ClassVar[Callable[..., Tensor]] = staticmethod(ConvReluPool.apply)
    conv_leaky: ClassVar[Callable[..., Tensor]] = staticmethod(ConvLeaky.apply)

    def patch_products(self, prepared: Tensor, channels: int) -> Tensor:
        """Σ over all pixels of p ⊗ p, float64 [9C + 1, 9C + 1].

        p is the normalised 3×3 patch around the pixel (zeros outside of the image), ordered as a
        filter's [C, 3, 3], and a one behind it.
        """
        return products_of_patches(pixels.products(prepared), channels)

    def image_patch_products(self, prepared: Tensor, channels: int) -> Tensor:
        """The same for each image, [n, 9C + 1, 9C + 1]."""
        return products_of_patches(pixels.image_products(prepared), channels)

    def moments(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and biased variance per channel, without a graph."""
        return norm_pool.moments(rows_of(values.detach()))

    def norm_relu_pool(self, values: Tensor, norm: Norm) -> Tensor:
        """max-pool 2 of relu(norm(values))."""
        return _applied(NormReluPool, values, *norm)

    def norm_leaky(self, values: Tensor, norm: Norm, slope: float) -> Tensor:
        """leaky(norm(values))."""
        return _applied(NormLeaky, values, *norm, slope)

    def join(
        self, main: Tensor, main_norm: Norm, shortcut: Tensor, shortcut_norm: Norm, slope: float
    ) -> Tensor:
        """max-pool 2 of leaky(norm(main) + norm(shortcut))."""
        parameters = (*main_norm[:2], *shortcut_norm[:2])
        return _applied(Join, main, shortcut, *parameters, main_norm, shortcut_norm, slope)

    def join_pixels(
        self, main: Tensor, norm: Norm, prepared: Tensor, weight: Tensor, shift: Tensor,
        slope: float,
    ) -> Tensor:  # fmt: skip
        """max-pool 2 of leaky(norm(main) + weight · pixel + shift)."""
        return _applied(JoinPixels, main, prepared, weight, shift, *norm[:2], norm, slope)


def _applied(function: type[torch.autograd.Function], *given: Any) -> Tensor:
    found: Tensor = function.apply(*given)
    return found
