"""What the fused networks are made of, by the kernels: bfloat16 with float32 sums.

Only a machine with Triton can import this. The same operations in plain torch, which the kernels
are compared with, are in benchmarks/plain_operations.py.
"""

from __future__ import annotations

from torch import Tensor

from derts.kernels import norm_pool, pixels
from derts.kernels.functions import (
    ConvLeaky,
    ConvReluPool,
    Join,
    JoinPixels,
    NormLeaky,
    NormReluPool,
    rows_of,
)
from derts.kernels.patch_sums import Norm
from derts.kernels.patches import products_of_patches


class KernelOperations:
    """Values are [n, C, H, W], channels last; `prepared` pixels as `prepare` made them."""

    def prepare(self, images: Tensor) -> Tensor:
        """uint8 [n, H, W, C], H and W even, C ≤ 3 -> the form that operations on pixels want."""
        return pixels.frame(images)

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
        """Mean and biased variance per channel of [n, F, H, W], without a graph."""
        return norm_pool.moments(rows_of(values.detach()))

    def conv_relu_pool(self, prepared: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        """[n, F, H/2, W/2]; weight [F, C, 3, 3], shift [F]."""
        found: Tensor = ConvReluPool.apply(prepared, weight, shift)  # type: ignore[no-untyped-call]
        return found

    def norm_relu_pool(self, values: Tensor, norm: Norm) -> Tensor:
        """max-pool 2 of relu(norm(values)): [n, F, H, W] -> [n, F, H // 2, W // 2]."""
        found: Tensor = NormReluPool.apply(values, *norm)  # type: ignore[no-untyped-call]
        return found

    def conv_leaky(self, prepared: Tensor, weight: Tensor, shift: Tensor, slope: float) -> Tensor:
        """leaky(convolution of the pixels + shift); weight [F, C, 3, 3], shift [F]."""
        found: Tensor = ConvLeaky.apply(  # type: ignore[no-untyped-call]
            prepared, weight, shift, slope
        )
        return found

    def norm_leaky(self, values: Tensor, norm: Norm, slope: float) -> Tensor:
        """leaky(norm(values))."""
        found: Tensor = NormLeaky.apply(values, *norm, slope)  # type: ignore[no-untyped-call]
        return found

    def join(
        self, main: Tensor, main_norm: Norm, shortcut: Tensor, shortcut_norm: Norm, slope: float
    ) -> Tensor:
        """max-pool 2 of leaky(norm(main) + norm(shortcut))."""
        found: Tensor = Join.apply(  # type: ignore[no-untyped-call]
            main, shortcut, main_norm.weight, main_norm.bias, shortcut_norm.weight,
            shortcut_norm.bias, main_norm, shortcut_norm, slope,
        )  # fmt: skip
        return found

    def join_pixels(
        self, main: Tensor, norm: Norm, prepared: Tensor, weight: Tensor, shift: Tensor,
        slope: float,
    ) -> Tensor:  # fmt: skip
        """max-pool 2 of leaky(norm(main) + weight · pixel + shift); weight [F, C], shift [F]."""
        found: Tensor = JoinPixels.apply(  # type: ignore[no-untyped-call]
            main, prepared, weight, shift, norm.weight, norm.bias, norm, slope
        )
        return found
