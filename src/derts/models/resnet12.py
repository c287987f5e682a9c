"""ResNet-12, the larger backbone of the few-shot literature (64-128-256-512)."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from derts.errors import DertsError
from derts.models.batch_norm import BatchNorm

SLOPE = 0.1


class DropBlock(nn.Module):
    """Drops square patches of activations while training (Ghiasi et al., 2018)."""

    def __init__(self, rate: float, size: int) -> None:
        super().__init__()
        self.rate, self.size = rate, size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, channels, height, width] -> the same shape."""
        if not self.training or self.rate == 0:
            return x
        height, width = x.shape[-2:]
        size = min(self.size, height, width)
        room = (height - size + 1) * (width - size + 1)
        seeds = (torch.rand_like(x) < self.rate * height * width / size**2 / room).to(x.dtype)
        dropped = F.max_pool2d(F.pad(seeds, [size // 2] * 4), size, stride=1)
        kept = 1 - dropped[..., :height, :width]
        return x * kept * (kept.numel() / kept.sum().clamp(min=1))


class ResidualBlock(nn.Module):
    """Three conv 3×3 with BatchNorm and leaky ReLU beside a 1×1 shortcut, then max-pool 2."""

    def __init__(self, channels_in: int, channels_out: int, drop_rate: float, size: int) -> None:
        super().__init__()
        widths = [channels_in, *[channels_out] * 3]
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairwise(widths)
        )
        self.norms = nn.ModuleList(BatchNorm(channels_out) for _ in range(3))
        self.shortcut = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 1, bias=False), BatchNorm(channels_out)
        )
        self.drop = DropBlock(drop_rate, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, channels_in, height, width] -> [n, channels_out, height // 2, width // 2]."""
        y = x
        for number, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(y))
            if number < 2:
                y = F.leaky_relu(y, SLOPE)
        y = F.leaky_relu(F.max_pool2d(y + self.shortcut(x), 2), SLOPE)  # as in CNN4's blocks
        dropped: torch.Tensor = self.drop(y)
        return dropped


class ResNet12(nn.Module):
    """Four residual blocks and an average pool; the last width is the number of features.

    >>> backbone = ResNet12(channels=3, image_size=(32, 32), widths=(8, 16, 24, 32))
    >>> backbone.dim, backbone(torch.zeros(2, 3, 32, 32)).shape
    (32, torch.Size([2, 32]))
    """

    def __init__(
        self,
        channels: int,
        image_size: tuple[int, int],
        widths: tuple[int, ...] = (64, 128, 256, 512),
        drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if min(image_size) < 2 ** len(widths):
            raise DertsError(
                f"resnet12 needs images of at least {2 ** len(widths)} pixels a side, not "
                f"{image_size[0]}×{image_size[1]}: prepare the data with a larger --size"
            )
        # DropBlock belongs to the last two blocks, as is usual in few-shot work
        rates = [0.0, 0.0, drop_rate, drop_rate]
        self.blocks = nn.Sequential(
            *(
                ResidualBlock(a, b, rate, size=5)
                for a, b, rate in zip((channels, *widths[:-1]), widths, rates, strict=True)
            )
        )
        self.dim = widths[-1]
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(
                    module.weight, a=SLOPE, mode="fan_out", nonlinearity="leaky_relu"
                )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised images float [n, channels, height, width] -> features [n, dim]."""
        y: torch.Tensor = self.blocks(x)
        return y.mean((2, 3))
