"""The kernels as differentiable operations, and the same operations in plain torch."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

PIXEL_MEAN, PIXEL_SCALE = 116.0, 64.0
"""One fixed shift and scale for all data sets: nothing to store with a model or to get wrong."""


class Operations(Protocol):
    """What a fused network is made of."""

    def prepare(self, images: Tensor) -> Tensor:
        """uint8 [n, H, W, C], H and W even, C ≤ 3 -> the form that the next two want."""

    def patch_products(self, prepared: Tensor, channels: int) -> Tensor:
        """Σ over all pixels of p ⊗ p, float64 [9C + 1, 9C + 1].

        p is the normalised 3×3 patch around the pixel (zeros outside of the image), ordered as a
        filter's [C, 3, 3], and a one behind it.
        """

    def image_patch_products(self, prepared: Tensor, channels: int) -> Tensor:
        """The same for each image, [n, 9C + 1, 9C + 1]."""

    def conv_relu_pool(self, prepared: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        """[n, F, H/2, W/2], channels last; weight [F, C, 3, 3], shift [F]."""

    def norm_relu_pool(
        self, values: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor,
        eps: float, batch: bool,
    ) -> Tensor:  # fmt: skip
        """[n, F, H, W] -> [n, F, H // 2, W // 2]; `batch`: mean and variance are those of values.

        The gradient in values then includes the way through them.
        """

    def moments(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and biased variance per channel of [n, F, H, W], without a graph."""


class PlainOperations:
    """In torch, at the precision of the parameters: what the kernels are compared with."""

    def prepare(self, images: Tensor) -> Tensor:
        return (images.permute(0, 3, 1, 2).double() - PIXEL_MEAN) / PIXEL_SCALE

    def patch_products(self, prepared: Tensor, channels: int) -> Tensor:
        parts = [self.image_patch_products(part, channels).sum(0) for part in prepared.split(64)]
        return torch.stack(parts).sum(0)

    def image_patch_products(self, prepared: Tensor, channels: int) -> Tensor:
        rows = F.pad(F.unfold(prepared, 3, padding=1).transpose(1, 2), (0, 1), value=1.0)
        return rows.transpose(1, 2) @ rows

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

    def moments(self, values: Tensor) -> tuple[Tensor, Tensor]:
        variance, mean = torch.var_mean(values.detach(), (0, 2, 3), correction=0)
        return mean, variance


def _places(channels: int, device: torch.device) -> Tensor:
    """int64 [4, 9C + 1]: where the patch of each pooled position, and the one, are in a cell."""
    from derts.kernels.pixels import FOURTH

    channel = torch.arange(channels, device=device)[:, None, None]
    down = torch.arange(3, device=device)[None, :, None]
    right = torch.arange(3, device=device)[None, None, :]
    each = [
        (16 * channel + (down + position // 2) * 4 + right + position % 2).flatten()
        for position in range(4)
    ]
    return F.pad(torch.stack(each), (0, 1), value=FOURTH)


def _of_patches(found: Tensor, channels: int) -> Tensor:
    """Products of cells [..., 64, 64] -> of the patches in them, [..., 9C + 1, 9C + 1]."""
    places = _places(channels, found.device)
    return torch.stack([found[..., place, :][..., place] for place in places]).sum(0)


class _ConvReluPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, framed: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        from derts.kernels import pixels

        filters, channels = weight.shape[:2]
        places = _places(channels, framed.device)[:, :-1]
        spread = torch.zeros(4, pixels.ENTRIES, filters, dtype=torch.bfloat16, device=framed.device)
        flat = weight.flatten(1).T.to(torch.bfloat16).expand(4, -1, -1)
        spread.scatter_(1, places[..., None].expand(-1, -1, filters), flat)
        keep = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        pooled, winner = pixels.forward(
            framed, spread, shift.float(), keep, PIXEL_MEAN, PIXEL_SCALE
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
        places = _places(ctx.shape[1], framed.device)
        index = places[..., None].expand(-1, -1, found.shape[2])
        gradient = found.gather(1, index).sum(0)  # [9C + 1, F]
        return None, gradient[:-1].T.reshape(ctx.shape), gradient[-1]


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


class FusedOperations:
    """By the kernels, in bfloat16 with float32 sums."""

    def prepare(self, images: Tensor) -> Tensor:
        from derts.kernels import pixels

        return pixels.frame(images, PIXEL_MEAN, PIXEL_SCALE)

    def patch_products(self, prepared: Tensor, channels: int) -> Tensor:
        from derts.kernels import pixels

        return _of_patches(pixels.products(prepared, PIXEL_MEAN, PIXEL_SCALE), channels)

    def image_patch_products(self, prepared: Tensor, channels: int) -> Tensor:
        from derts.kernels import pixels

        return _of_patches(pixels.image_products(prepared, PIXEL_MEAN, PIXEL_SCALE), channels)

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

    def moments(self, values: Tensor) -> tuple[Tensor, Tensor]:
        from derts.kernels import norm_pool

        return norm_pool.moments(values.detach().permute(0, 2, 3, 1).contiguous())
