"""ResNet-12, the larger backbone of the few-shot literature (64-128-256-512)."""

from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from derts.errors import DertsError
from derts.models.batch_norm import BatchNorm
from derts.models.pieces import Layer, conv_norm

SLOPE = 0.1


class ResidualBlock(nn.Module):
    """Three conv 3×3 with BatchNorm and leaky ReLU beside a 1×1 shortcut, then max-pool 2."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        widths = [channels_in, *[channels_out] * 3]
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 3, padding=1, bias=False) for a, b in pairwise(widths)
        )
        self.norms = nn.ModuleList(BatchNorm(channels_out) for _ in range(3))
        self.shortcut = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 1, bias=False), BatchNorm(channels_out)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, channels_in, height, width] -> [n, channels_out, height // 2, width // 2]."""
        (*before, last), shortcut = self.layers()
        y = x
        for layer in before:
            y = conv_norm([layer], [y], lambda y: F.leaky_relu(y, SLOPE))
        return conv_norm([last, shortcut], [y, x], _joined)

    def layers(self) -> tuple[list[Layer], Layer]:
        """Convolutions with their norms: of the main branch, of the shortcut."""
        main = list(zip(self.convs, self.norms, strict=True))
        return cast(list[Layer], main), cast(Layer, tuple(self.shortcut))


def _joined(main: torch.Tensor, shortcut: torch.Tensor) -> torch.Tensor:
    return F.leaky_relu(F.max_pool2d(main + shortcut, 2), SLOPE)  # as in CNN4's blocks


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
    ) -> None:
        super().__init__()
        if min(image_size) < (least := 2 ** len(widths)):
            wrong = f"resnet12 needs images of at least {least} pixels a side, not {image_size}"
            raise DertsError(f"{wrong}: prepare the data with a larger --size")
        self.blocks = nn.Sequential(
            *(ResidualBlock(a, b) for a, b in pairwise((channels, *widths)))
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
