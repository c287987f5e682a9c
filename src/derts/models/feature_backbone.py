"""Backbones for data that is features already: none, linear, mlp."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from derts.data.table import Table
from derts.tasks.randomness import generator, torch_seeded

LENGTH = 32.0  # root mean square length of a row after `fit`: what the learners' defaults are for
SAMPLE = 1 << 23  # numbers of a table that are looked at for its main directions
GAIN = 0.1  # the smaller, the less an update changes a weight


class FeatureBackbone(nn.Module):
    """Rows of features [n, d], centred, scaled as a whole, and changed by a small network.

    none    as they are; a factor for all is learned: how sharp ProtoNet's probabilities are
    linear  a linear map to 2 × `width` features, or to d where that is fewer
    mlp     the same, plus a hidden layer of `width` ReLUs

    `fit` makes training start from the features themselves, in their main directions.

    >>> backbone = FeatureBackbone(1280, "mlp", width=32)
    >>> backbone.dim, backbone(torch.zeros(2, 1280)).shape
    (64, torch.Size([2, 64]))
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, features: int, kind: str, width: int = 64) -> None:
        super().__init__()
        self.kind, self.dim = kind, features if kind == "none" else min(features, 2 * width)
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(()))
        if kind == "none":
            self.factor = nn.Parameter(torch.ones(()))
            return
        self.weight = nn.Parameter(torch.empty(self.dim, features))
        nn.init.orthogonal_(self.weight, 1 / GAIN)
        if kind == "mlp":
            self.enter = nn.Linear(self.dim, width)
            self.leave = nn.Linear(width, self.dim, bias=False)
            nn.init.zeros_(self.leave.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Features float [n, d] -> [n, dim]."""
        if self.kind == "none":
            return (x - self.mean) * (self.scale * self.factor)
        weight = self.weight * (GAIN * self.scale)
        found = F.linear(x, weight, -(weight @ self.mean))  # one pass over what may be wide
        return found + self.leave(F.relu(self.enter(found))) if self.kind == "mlp" else found

    @torch.no_grad()
    def fit(self, table: Table) -> None:
        """Take centre, scale and main directions from some thousand rows of a table.

        Single columns are not scaled: that would make rare words and noise count like all else.
        """
        most = max(self.dim, SAMPLE // self.mean.numel())
        order = torch.randperm(len(table), generator=generator((0, "features")))
        rows = table.gather(order[:most].sort().values).cpu()
        self.mean.copy_(rows.mean(0))
        rows = rows - self.mean.cpu()
        length = float(rows.square().sum(1).mean().sqrt())
        self.scale.fill_(LENGTH / length if length else 1.0)
        if self.kind != "none" and self.dim < min(rows.shape):
            with torch_seeded(0):
                self.weight.copy_(torch.svd_lowrank(rows, self.dim)[2].T / GAIN)
