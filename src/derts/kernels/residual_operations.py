"""What a fused ResNet-12 is made of, by kernels and in plain torch."""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from derts.kernels.common_operations import CommonOperations, FusedCommon, PlainCommon
from derts.kernels.residual_functions import ConvLeaky, Join, JoinPixels, Norm, NormLeaky

__all__ = ["FusedResidual", "Norm", "PlainResidual", "ResidualOperations"]


class ResidualOperations(CommonOperations, Protocol):
    """Values are [n, C, H, W], channels last; `prepared` pixels as `prepare` made them."""

    def conv_leaky(self, prepared: Tensor, weight: Tensor, shift: Tensor, slope: float) -> Tensor:
        """leaky(convolution of the pixels + shift); weight [F, C, 3, 3], shift [F]."""

    def norm_leaky(self, values: Tensor, norm: Norm, slope: float) -> Tensor:
        """leaky(norm(values))."""

    def join(
        self, main: Tensor, main_norm: Norm, shortcut: Tensor, shortcut_norm: Norm, slope: float
    ) -> Tensor:
        """max-pool 2 of leaky(norm(main) + norm(shortcut))."""

    def join_pixels(
        self, main: Tensor, norm: Norm, prepared: Tensor, weight: Tensor, shift: Tensor,
        slope: float,
    ) -> Tensor:  # fmt: skip
        """max-pool 2 of leaky(norm(main) + weight · pixel + shift); weight [F, C], shift [F]."""


def _plain_norm(values: Tensor, norm: Norm) -> Tensor:
    known = (None, None) if norm.batch else (norm.mean, norm.variance)
    return F.batch_norm(
        values, known[0], known[1], norm.weight, norm.bias, training=norm.batch, eps=norm.eps
    )


class PlainResidual(PlainCommon):
    """In torch: what the kernels are compared with."""

    def conv_leaky(self, prepared: Tensor, weight: Tensor, shift: Tensor, slope: float) -> Tensor:
        values = F.conv2d(prepared.to(weight.dtype), weight, shift, padding=1)
        return F.leaky_relu(values, slope)

    def norm_leaky(self, values: Tensor, norm: Norm, slope: float) -> Tensor:
        return F.leaky_relu(_plain_norm(values, norm), slope)

    def join(
        self, main: Tensor, main_norm: Norm, shortcut: Tensor, shortcut_norm: Norm, slope: float
    ) -> Tensor:
        both = _plain_norm(main, main_norm) + _plain_norm(shortcut, shortcut_norm)
        return F.max_pool2d(F.leaky_relu(both, slope), 2)

    def join_pixels(
        self, main: Tensor, norm: Norm, prepared: Tensor, weight: Tensor, shift: Tensor,
        slope: float,
    ) -> Tensor:  # fmt: skip
        shortcut = F.conv2d(prepared.to(weight.dtype), weight[:, :, None, None], shift)
        return F.max_pool2d(F.leaky_relu(_plain_norm(main, norm) + shortcut, slope), 2)


class FusedResidual(FusedCommon):
    """By the kernels, in bfloat16 with float32 sums."""

    def conv_leaky(self, prepared: Tensor, weight: Tensor, shift: Tensor, slope: float) -> Tensor:
        found: Tensor = ConvLeaky.apply(  # type: ignore[no-untyped-call]
            prepared, weight, shift, slope
        )
        return found

    def norm_leaky(self, values: Tensor, norm: Norm, slope: float) -> Tensor:
        found: Tensor = NormLeaky.apply(values, *norm, slope)  # type: ignore[no-untyped-call]
        return found

    def join(
        self, main: Tensor, main_norm: Norm, shortcut: Tensor, shortcut_norm: Norm, slope: float
    ) -> Tensor:
        found: Tensor = Join.apply(  # type: ignore[no-untyped-call]
            main, shortcut, main_norm.weight, main_norm.bias, shortcut_norm.weight,
            shortcut_norm.bias, main_norm, shortcut_norm, slope,
        )  # fmt: skip
        return found

    def join_pixels(
        self, main: Tensor, norm: Norm, prepared: Tensor, weight: Tensor, shift: Tensor,
        slope: float,
    ) -> Tensor:  # fmt: skip
        found: Tensor = JoinPixels.apply(  # type: ignore[no-untyped-call]
            main, prepared, weight, shift, norm.weight, norm.bias, norm, slope
        )
        return found
