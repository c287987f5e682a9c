"""The kernels' operations in plain torch, at the precision of the parameters.

What the kernels are compared with on a GPU (benchmarks/kernels.py), and what shows on a CPU that
the fused networks are the plain ones (tests/kernels). Each is explained where the kernels' own is,
in derts.kernels.functions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.models.embedding import normalised
from derts.models.pieces import Norm


class PlainOperations:
    """In torch."""

    def prepare(self, images: Tensor) -> Tensor:
        return normalised(images, torch.float64)

    def patch_products(self, prepared: Tensor, channels: int) -> Tensor:
        parts = [self.image_patch_products(part, channels).sum(0) for part in prepared.split(64)]
        return torch.stack(parts).sum(0)

    def image_patch_products(self, prepared: Tensor, channels: int) -> Tensor:
        rows = F.pad(F.unfold(prepared, 3, padding=1).transpose(1, 2), (0, 1), value=1.0)
        return rows.transpose(1, 2) @ rows

    def moments(self, values: Tensor) -> tuple[Tensor, Tensor]:
        variance, mean = torch.var_mean(values.detach(), (0, 2, 3), correction=0)
        return mean, variance

    def conv_relu_pool(self, prepared: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        values = F.conv2d(prepared.to(weight.dtype), weight, shift, padding=1)
        return F.max_pool2d(F.relu(values), 2)

    def norm_relu_pool(self, values: Tensor, norm: Norm) -> Tensor:
        return F.max_pool2d(F.relu(_normed(values, norm)), 2)

    def conv_leaky(self, prepared: Tensor, weight: Tensor, shift: Tensor, slope: float) -> Tensor:
        values = F.conv2d(prepared.to(weight.dtype), weight, shift, padding=1)
        return F.leaky_relu(values, slope)

    def norm_leaky(self, values: Tensor, norm: Norm, slope: float) -> Tensor:
        return F.leaky_relu(_normed(values, norm), slope)

    def join(
        self, main: Tensor, main_norm: Norm, shortcut: Tensor, shortcut_norm: Norm, slope: float
    ) -> Tensor:
        both = _normed(main, main_norm) + _normed(shortcut, shortcut_norm)
        return F.max_pool2d(F.leaky_relu(both, slope), 2)

    def join_pixels(
        self, main: Tensor, norm: Norm, prepared: Tensor, weight: Tensor, shift: Tensor,
        slope: float,
    ) -> Tensor:  # fmt: skip
        shortcut = F.conv2d(prepared.to(weight.dtype), weight[:, :, None, None], shift)
        return F.max_pool2d(F.leaky_relu(_normed(main, norm) + shortcut, slope), 2)


def _normed(values: Tensor, norm: Norm) -> Tensor:
    known = (None, None) if norm.batch else (norm.mean, norm.variance)
    return F.batch_norm(
        values, known[0], known[1], norm.weight, norm.bias, training=norm.batch, eps=norm.eps
    )
