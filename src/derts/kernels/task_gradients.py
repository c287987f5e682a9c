"""Convolution and max-pool with filters of each task's own, and gradients of their gradients.

A convolution's gradient in its values is a convolution of the upstream gradient with the flipped
filters, and those of a filter's gradient are convolutions too. So the second order needs
nothing but the same operations, and no more than their inputs is kept for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from derts.kernels import task_operations, usable_on

CHANNELS = (16, 32, 64)  # that kernels are made for: more needs another split of the work


def operations_for(values: Tensor, *others: Tensor) -> Any:
    """Kernels for values [T, n, H, W, C] where there are any, else plain torch."""
    known = all(given.shape[-1] in CHANNELS for given in (values, *others))
    if not (known and values.dtype == torch.bfloat16 and usable_on(values.device)):
        return task_operations
    from derts.kernels import task_kernels  # needs Triton

    return task_kernels


def convolution(values: Tensor, filters: Tensor) -> Tensor:
    """Values [T, n, H, W, C], filters [T, 9 or 1, C, F] -> [T, n, H, W, F]."""
    found: Tensor = _applied(_Convolution, values, filters)
    return found


def pool(values: Tensor, context: int) -> tuple[Tensor, Tensor, Tensor]:
    """[T, n, H, W, C] -> max-pool 2; Σ y and Σ y² [T, C] of each task's first `context` images."""
    found: tuple[Tensor, Tensor, Tensor] = _applied(_Pool, values, context)
    return found


def _applied(function: Any, *given: Any) -> Any:
    return function.apply(*given)  # torch has no type for it


def _flipped(filters: Tensor) -> Tensor:
    return filters.flip(1).transpose(2, 3)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, filters: Tensor) -> Tensor:
        ctx.save_for_backward(values, filters)
        found: Tensor = operations_for(values, filters).convolved(values, filters)
        return found

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor | None, Tensor | None]:
        values, filters = ctx.saved_tensors
        arriving = upstream[0].contiguous()
        to_values, to_filters = ctx.needs_input_grad
        return (
            convolution(arriving, _flipped(filters)) if to_values else None,
            _applied(_FilterGradient, values, arriving, filters.shape) if to_filters else None,
        )


class _FilterGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, upstream: Tensor, shape: torch.Size) -> Tensor:
        ctx.save_for_backward(values, upstream)
        operations = operations_for(values, upstream)
        found: Tensor = operations.filter_gradient(values, upstream, shape)
        return found

    @staticmethod
    def backward(ctx: Any, *change: Any) -> tuple[Tensor | None, Tensor | None, None]:
        values, upstream = ctx.saved_tensors
        to_values, to_upstream, _ = ctx.needs_input_grad
        return (
            convolution(upstream, _flipped(change[0])) if to_values else None,
            convolution(values, change[0]) if to_upstream else None,
            None,
        )


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, context: int) -> tuple[Tensor, Tensor, Tensor]:
        pooled, places, total, squares = operations_for(values).pool(values, context)
        ctx.save_for_backward(values, places)
        ctx.context = context
        return pooled, total, squares

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor, None]:
        values, places = ctx.saved_tensors
        arriving, constant, slope = upstream
        return _applied(_Spread, values, arriving, constant, 2 * slope, places, ctx.context), None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, arriving: Tensor, constant: Tensor, slope: Tensor,
        places: Tensor, context: int,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(values, slope, places)
        ctx.context = context
        given = values, arriving.contiguous(), constant, slope, places, context
        found: Tensor = operations_for(values).spread(*given)
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *change: Any) -> tuple[Tensor | None, ...]:
        values, slope, places = ctx.saved_tensors
        given = change[0].contiguous(), values, slope, places, ctx.context
        return *operations_for(values).collect(*given), None, None
