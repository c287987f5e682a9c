"""Convolution 3×3 where every task has filters of its own; its gradients are the same again.

Values are [T, n, H, W, C], filters [T, 9, C, F] (or [T, 1, C, F]: of single pixels) in a precision
of their own. The gradient in the values is a convolution of the upstream gradient with the filters
turned around, and those of a filter's gradient are convolutions: so gradients of gradients cost
nothing but these two operations, and nothing larger than their inputs is kept for them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def patches(values: Tensor) -> Tensor:
    """[N, H, W, C] -> [N, H, W, 9C]: the 3×3 pixels around each, zeros outside."""
    count, height, width, channels = values.shape
    framed = F.pad(values, (0, 0, 1, 1, 1, 1))
    # no more than a copy, so several channels may go as one number
    whole = framed.view(torch.int64) if channels * values.itemsize % 8 == 0 else framed
    around = whole.unfold(1, 3, 1).unfold(2, 3, 1).permute(0, 1, 2, 4, 5, 3)
    return around.reshape(count, height, width, -1).view(values.dtype)


def _convolved(values: Tensor, filters: Tensor) -> Tensor:
    taps = values if filters.shape[1] == 1 else patches(values.flatten(0, 1))
    products = taps.reshape(len(values), -1, taps.shape[-1]) @ filters.flatten(1, 2).to(taps.dtype)
    return products.view(*values.shape[:4], -1)


def _filter_gradient(values: Tensor, upstream: Tensor, shape: torch.Size) -> Tensor:
    taps = values.flatten(0, 1) if shape[1] == 1 else patches(values.flatten(0, 1))
    # image by image: many small products fill a GPU, few long ones do not
    each = taps.flatten(1, 2).transpose(1, 2) @ upstream.flatten(0, 1).flatten(1, 2)
    wide = torch.promote_types(values.dtype, torch.float32)
    return each.view(*values.shape[:2], *each.shape[1:]).sum(1, dtype=wide).view(shape)


def _turned(filters: Tensor) -> Tensor:
    return filters.flip(1).transpose(2, 3)


def applied(function: Any, *given: Any) -> Any:
    """An autograd function of what is given; torch has no type for it."""
    return function.apply(*given)


class Convolution(torch.autograd.Function):
    """(values, filters) -> [T, n, H, W, F]."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, filters: Tensor) -> Tensor:
        ctx.save_for_backward(values, filters)
        return _convolved(values, filters)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor | None, Tensor | None]:
        values, filters = ctx.saved_tensors
        (arriving,) = upstream
        to_values, to_filters = ctx.needs_input_grad
        return (
            convolution(arriving, _turned(filters)) if to_values else None,
            applied(FilterGradient, values, arriving, filters.shape) if to_filters else None,
        )


class FilterGradient(torch.autograd.Function):
    """(values, upstream gradient, shape of the filters) -> gradient in the filters."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, upstream: Tensor, shape: torch.Size) -> Tensor:
        ctx.save_for_backward(values, upstream)
        return _filter_gradient(values, upstream.contiguous(), shape)

    @staticmethod
    def backward(ctx: Any, *change: Any) -> tuple[Tensor | None, Tensor | None, None]:
        values, upstream = ctx.saved_tensors
        (filters,) = change
        return (
            convolution(upstream, _turned(filters)) if ctx.needs_input_grad[0] else None,
            convolution(values, filters) if ctx.needs_input_grad[1] else None,
            None,
        )


def convolution(values: Tensor, filters: Tensor) -> Tensor:
    """Values [T, n, H, W, C], filters [T, 9 or 1, C, F] -> [T, n, H, W, F]."""
    found: Tensor = applied(Convolution, values, filters)
    return found
