"""CNN4, the four-block convolutional backbone of the few-shot literature."""

import torch
import torch.nn.functional as F
from torch import nn

from derts.errors import DertsError
from derts.models.batch_norm import BatchNorm
from derts.models.pieces import conv_norm

BLOCKS = 4


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


class CNN4(nn.Module):
    """Four ConvBlocks; 64 filters give 1600 features for 84×84 images, 64 for 28×28.

    >>> backbone = CNN4(channels=3, image_size=(84, 84), width=64)
    >>> backbone.dim, backbone(torch.zeros(2, 3, 84, 84)).shape
    (1600, torch.Size([2, 1600]))
    """

    def __init__(self, channels: int, image_size: tuple[int, int], width: int = 64) -> None:
        super().__init__()
        if min(image_size) < 2**BLOCKS:
            wrong = f"cnn4 needs images of at least {2**BLOCKS} pixels a side, not {image_size}"
            raise DertsError(f"{wrong}: prepare the data with a larger --size")
        widths = [channels] + [width] * BLOCKS
        self.blocks = nn.Sequential(*map(ConvBlock, widths[:-1], widths[1:]))
        self.dim = width * (image_size[0] >> BLOCKS) * (image_size[1] >> BLOCKS)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalised images float [n, channels, height, width] -> features [n, dim]."""
        y: torch.Tensor = self.blocks(x)
        return y.flatten(1)
