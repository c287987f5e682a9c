"""3×3 convolutions whose gradients take cuDNN's faster ways, and two branches from one input.

On an H200 the gradient of a convolution's input is made faster by the kernels of forward passes,
from turned filters; with 64 channels faster still two columns at a time, as 128 channels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PAIRED_CHANNELS = 64


class Convolution(torch.autograd.Function):
    """A 3×3 convolution of values [n, C, H, W] by weight [F, C, 3, 3], padded to the same size."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(values, weight)
        return F.conv2d(values, weight, padding=1)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor | None, ...]:
        values, weight = ctx.saved_tensors
        to_values = _to_values(upstream[0], weight) if ctx.needs_input_grad[0] else None
        return to_values, _to_weight(upstream[0], values, weight)


class Branches(torch.autograd.Function):
    """3×3 and 1×1 convolutions of the same values: their gradients become one without a sum."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, main: Tensor, shortcut: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(values, main, shortcut)
        return F.conv2d(values, main, padding=1), F.conv2d(values, shortcut)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> tuple[Tensor | None, ...]:
        values, main, shortcut = ctx.saved_tensors
        from_main, from_shortcut = upstream
        to_values = None
        if ctx.needs_input_grad[0]:
            to_values = _to_values(from_main, main)
            rows = to_values.permute(0, 2, 3, 1).flatten(0, 2)
            arriving = from_shortcut.permute(0, 2, 3, 1).flatten(0, 2)
            rows.addmm_(arriving, shortcut[:, :, 0, 0])
        to_main = _to_weight(from_main, values, main)
        return to_values, to_main, _to_weight(from_shortcut, values, shortcut)


def _to_values(arriving: Tensor, weight: Tensor) -> Tensor:
    """Gradient of the input of a 3×3 convolution, channels last."""
    turned = weight.flip(2, 3).transpose(0, 1)
    arriving = arriving.contiguous(memory_format=torch.channels_last)
    filters, _, columns = weight.shape[1], arriving.shape[2], arriving.shape[3]
    if filters != PAIRED_CHANNELS or weight.shape[0] != filters or columns % 2:
        found = F.conv2d(arriving, _channels_last(turned), padding=1)
        return found.contiguous(memory_format=torch.channels_last)
    pairs = torch.cat((F.pad(turned, (0, 1)), F.pad(turned, (1, 0))))  # left and right column
    found = F.conv2d(arriving, _channels_last(pairs), stride=(1, 2), padding=1)
    rows = found.permute(0, 2, 3, 1).contiguous().reshape(*arriving.permute(0, 2, 3, 1).shape)
    return rows.permute(0, 3, 1, 2)


def _to_weight(arriving: Tensor, values: Tensor, weight: Tensor) -> Tensor:
    padding = [weight.shape[2] // 2] * 2
    _, found, _ = torch.ops.aten.convolution_backward(
        arriving, values, weight, None, [1, 1], padding, [1, 1], False, [0, 0], 1,
        [False, True, False],
    )  # fmt: skip
    made: Tensor = found
    return made


def _channels_last(values: Tensor) -> Tensor:
    return values.contiguous(memory_format=torch.channels_last)
