"""BatchNorm whose statistics may be of a support set, or of several processes."""

from collections.abc import Callable

import torch
from torch import nn

Total = Callable[[torch.Tensor], torch.Tensor]


class BatchNorm(nn.BatchNorm2d):
    """BatchNorm2d: training uses the whole batch's statistics, evaluation the running ones."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        # So many first images (a task's support set) give the statistics for all, in training and
        # evaluation alike, and no running statistics are read or written: as MAML works.
        self.context: int | None = None
        # Sums a tensor, with gradients, over the processes whose batches make the statistics.
        self.total: Total | None = None
        # So many images at a time, where a block cuts them into pieces: derts.models.pieces.
        self.at_once: int | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, channels, height, width] -> the same shape."""
        if self.context is not None:
            support = x[: self.context].to(self.weight.dtype)
            variance, mean = torch.var_mean(support, (0, 2, 3), correction=0)
            return self._normalise(x, mean, variance)
        if self.total is not None and self.training:
            return self._over_processes(x, self.total)
        return super().forward(x)

    def _over_processes(self, x: torch.Tensor, total: Total) -> torch.Tensor:
        values = x.to(self.weight.dtype)
        images = values.new_tensor([values.numel() / values.shape[1]])
        sums = total(torch.cat((values.sum((0, 2, 3)), images)))
        count, mean = sums[-1].detach(), sums[:-1] / sums[-1].detach()
        spread = (values - mean[None, :, None, None]).square().sum((0, 2, 3))
        variance = total(spread) / count
        self.move_statistics(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        return self._normalise(x, mean, variance)

    @torch.no_grad()
    def move_statistics(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Move the running statistics towards those of a batch: [channels] each, unbiased."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            assert running is not None
            running.lerp_(new.to(running.dtype), self.momentum or 0.1)

    def _normalise(
        self, x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor
    ) -> torch.Tensor:
        scale = torch.rsqrt(variance + self.eps) * self.weight
        shift = self.bias - mean * scale
        return x * scale[:, None, None].to(x.dtype) + shift[:, None, None].to(x.dtype)


def set_context(module: nn.Module, context: int | None) -> None:
    """Let every BatchNorm in a model take its statistics from the first `context` images."""
    for child in module.modules():
        if isinstance(child, BatchNorm):
            child.context = context


def set_total(module: nn.Module, total: Total | None) -> None:
    """Let every BatchNorm in a model take its training statistics over several processes."""
    for child in module.modules():
        if isinstance(child, BatchNorm):
            child.total = total
