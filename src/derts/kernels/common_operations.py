"""What every fused network is made of: images, their patches' products, moments."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from derts.kernels.patches import PIXEL_MEAN, PIXEL_SCALE, products_of_patches


class CommonOperations(Protocol):
    """By kernels or in plain torch."""

    def prepare(self, images: Tensor) -> Tensor:
        """uint8 [n, H, W, C], H and W even, C ≤ 3 -> the form that operations on pixels want."""

    def patch_products(self, prepared: Tensor, channels: int) -> Tensor:
        """Σ over all pixels of p ⊗ p, float64 [9C + 1, 9C + 1].

        p is the normalised 3×3 patch around the pixel (zeros outside of the image), ordered as a
        filter's [C, 3, 3], and a one behind it.
        """

    def image_patch_products(self, prepared: Tensor, channels: int) -> Tensor:
        """The same for each image, [n, 9C + 1, 9C + 1]."""

    def moments(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and biased variance per channel of [n, F, H, W], without a graph."""


class PlainCommon:
    """In torch: what the kernels are compared with."""

    def prepare(self, images: Tensor) -> Tensor:
        return (images.permute(0, 3, 1, 2).double() - PIXEL_MEAN) / PIXEL_SCALE

    def patch_products(self, prepared: Tensor, channels: int) -> Tensor:
        parts = [self.image_patch_products(part, channels).sum(0) for part in prepared.split(64)]
        return torch.stack(parts).sum(0)

    def image_patch_products(self, prepared: Tensor, channels: int) -> Tensor:
        rows = F.pad(F.unfold(prepared, 3, padding=1).transpose(1, 2), (0, 1), value=1.0)
        return rows.transpose(1, 2) @ rows

    def moments(self, values: Tensor) -> tuple[Tensor, Tensor]:
        variance, mean = torch.var_mean(values.detach(), (0, 2, 3), correction=0)
        return mean, variance


class FusedCommon:
    """By the kernels."""

    def prepare(self, images: Tensor) -> Tensor:
        from derts.kernels import pixels

        return pixels.frame(images, PIXEL_MEAN, PIXEL_SCALE)

    def patch_products(self, prepared: Tensor, channels: int) -> Tensor:
        from derts.kernels import pixels

        return products_of_patches(pixels.products(prepared, PIXEL_MEAN, PIXEL_SCALE), channels)

    def image_patch_products(self, prepared: Tensor, channels: int) -> Tensor:
        from derts.kernels import pixels

        found = pixels.image_products(prepared, PIXEL_MEAN, PIXEL_SCALE)
        return products_of_patches(found, channels)

    def moments(self, values: Tensor) -> tuple[Tensor, Tensor]:
        from derts.kernels import norm_pool

        rows = values.detach().permute(0, 2, 3, 1).to(torch.bfloat16).contiguous()
        return norm_pool.moments(rows)
