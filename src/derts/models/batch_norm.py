"""BatchNorm with the three policies that few-shot training asks for."""

from collections.abc import Callable

import torch
from torch import nn

Total = Callable[[torch.Tensor], torch.Tensor]


class BatchNorm(nn.BatchNorm2d):
    """BatchNorm2d that can also take its statistics per task, or from the support set alone.

    `groups` = 1 (default): training uses the statistics of the whole batch, all tasks together;
    evaluation uses the running statistics, so that test images never see each other.
    `groups` = T: in training each of T equal, consecutive parts of the batch (one per task) is
    normalised by itself; evaluation is the same as above.
    `context` = n: the first n images (a task's support set) give the statistics for all, and no
    running statistics are read or written. MAML works so, in training and evaluation alike.
    `total` sums a tensor over the processes that train together (with gradients): with it the
    statistics of `groups` = 1 are those of all processes' batches.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.groups = 1
        self.context: int | None = None
        self.total: Total | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n, channels, height, width] -> the same shape."""
        if self.context is not None:
            support = x[: self.context].to(self.weight.dtype)
            variance, mean = torch.var_mean(support, (0, 2, 3), correction=0)
            return self._normalise(x, mean[None], variance[None])
        if self.groups > 1 and self.training:
            return self._by_group(x)
        if self.total is not None and self.training:
            return self._over_processes(x, self.total)
        return super().forward(x)

    def _by_group(self, x: torch.Tensor) -> torch.Tensor:
        grouped = x.unflatten(0, (self.groups, -1)).to(self.weight.dtype)
        variance, mean = torch.var_mean(grouped, (1, 3, 4), correction=0)  # [groups, channels]
        self.move_statistics(mean.detach().mean(0), variance.detach().mean(0))
        each = len(x) // self.groups
        return self._normalise(
            x, mean.repeat_interleave(each, 0), variance.repeat_interleave(each, 0)
        )

    def _over_processes(self, x: torch.Tensor, total: Total) -> torch.Tensor:
        """As BatchNorm2d, with the statistics of all processes' batches taken together."""
        values = x.to(self.weight.dtype)
        images = values.new_tensor([values.numel() / values.shape[1]])
        sums = total(torch.cat((values.sum((0, 2, 3)), images)))
        count, mean = sums[-1].detach(), sums[:-1] / sums[-1].detach()
        spread = (values - mean[None, :, None, None]).square().sum((0, 2, 3))
        variance = total(spread) / count
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        self.move_statistics(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        return self._normalise(x, mean[None], variance[None])

    @torch.no_grad()
    def move_statistics(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Move the running statistics towards those of a batch: [channels] each."""
        momentum = self.momentum or 0.1
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            assert running is not None
            running.lerp_(new.to(running.dtype), momentum)

    def _normalise(
        self, x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor
    ) -> torch.Tensor:
        """mean and variance: [1 or n, channels]."""
        scale = torch.rsqrt(variance + self.eps) * self.weight
        shift = self.bias - mean * scale
        return x * scale[:, :, None, None].to(x.dtype) + shift[:, :, None, None].to(x.dtype)


def set_groups(module: nn.Module, groups: int) -> None:
    """Let every BatchNorm in a model treat its batch as `groups` parts while training."""
    for child in module.modules():
        if isinstance(child, BatchNorm):
            child.groups = groups


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
