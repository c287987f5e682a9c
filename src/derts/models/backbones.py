"""The backbones of the few-shot literature: CNN4, and ResNet-12, which is larger."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import nn

from derts.errors import DertsError
from derts.models.batch_norm import BatchNorm
from derts.models.pieces import Layer, conv_norm

BLOCKS = 4  # of CNN4
SLOPE = 0.1  # of ResNet-12's leaky ReLUs


class _Blocks(nn.Module):
    """Blocks, each of which halves an image's sides, with He's initial weights."""

    def __init__(
        self, name: str, blocks: Iterable[nn.Module], image_size: tuple[int, int], slope: float
    ) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)
        if min(image_size) < (least := 2 ** len(self.blocks)):
            wrong = f"{name} needs images of at least {least} pixels a side, not {image_size}"
            raise DertsError(f"{wrong}: prepare the data with a larger --size")
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                mode: Literal["fan_in", "fan_out"] = "fan_out" if slope else "fan_in"
                nn.init.kaiming_normal_(module.weight, slope, mode)


class ConvBlock(nn.Module):
    """conv 3×3, BatchNorm, ReLU, max-pool 2."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        # BatchNorm subtracts the mean, so a bias here would do nothing
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
        self.norm = BatchNorm(channels_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, channels_in, height, width] -> [n, channels_out, height // 2, width // 2]."""
        # the largest of four is the same before ReLU and after, which then has a quarter to do
        return conv_norm([(self.conv, self.norm)], [x], lambda y: F.relu(F.max_pool2d(y, 2)))


class CNN4(_Blocks):
    """Four ConvBlocks; 64 filters give 1600 features for 84×84 images, 64 for 28×28.

    >>> backbone = CNN4(channels=3, image_size=(84, 84), width=64)
    >>> backbone.dim, backbone(torch.zeros(2, 3, 84, 84)).shape
    (1600, torch.Size([2, 1600]))
    """

    def __init__(self, channels: int, image_size: tuple[int, int], width: int = 64) -> None:
        widths = pairwise([channels] + [width] * BLOCKS)
        super().__init__("cnn4", (ConvBlock(a, b) for a, b in widths), image_size, slope=0.0)
        self.dim = width * (image_size[0] >> BLOCKS) * (image_size[1] >> BLOCKS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised images float [n, channels, height, width] -> features [n, dim]."""
        y: torch.Tensor = self.blocks(x)
        return y.flatten(1)


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
        # pooled before the ReLU, as in CNN4's blocks
        return conv_norm(
            [last, shortcut], [y, x], lambda y, x: F.leaky_relu(F.max_pool2d(y + x, 2), SLOPE)
        )

    def layers(self) -> tuple[list[Layer], Layer]:
        """Convolutions with their norms: of the main branch, of the shortcut."""
        main = list(zip(self.convs, self.norms, strict=True))
        return cast(list[Layer], main), cast(Layer, tuple(self.shortcut))


class ResNet12(_Blocks):
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
        blocks = (ResidualBlock(a, b) for a, b in pairwise((channels, *widths)))
        super().__init__("resnet12", blocks, image_size, SLOPE)
        self.dim = widths[-1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised images float [n, channels, height, width] -> features [n, dim]."""
        y: torch.Tensor = self.blocks(x)
        return y.mean((2, 3))
