"""The usual way to meta-train, written plainly: task after task, as learn2learn's users do.

A task's images go through the network by themselves (BatchNorm sees one task), the inner loop is
torch.autograd.grad with create_graph, gradients add up over tasks, then the optimiser steps.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from derts.data import Table
from derts.tasks import TaskPool


class TaskLoop:
    """ANIL, MAML or ProtoNet on any backbone; `bfloat16` also turns on channels-last."""

    def __init__(
        self, learner: str, backbone: nn.Module, way: int, device: torch.device, bfloat16: bool
    ) -> None:
        self.learner, self.way, self.device, self.bfloat16 = learner, way, device, bfloat16
        head = nn.Linear(int(backbone.dim), way)  # type: ignore[arg-type]
        self.network = nn.Sequential(backbone, head).to(device)
        if bfloat16:
            self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimiser = torch.optim.AdamW(self.network.parameters(), lr=1e-3)
        self.inner_lr, self.inner_steps = 0.05, 3

    def update(self, images: Table, pool: TaskPool) -> float:
        """One update on all tasks of a meta-batch; returns the mean loss."""
        self.optimiser.zero_grad()
        total = 0.0
        for number in range(len(pool)):
            task = pool[number : number + 1]
            index = torch.cat((task.support, task.query), 1)[0]
            pixels = images.gather(index).to(self.device)
            is_image = pixels.ndim == 4
            x = (pixels.permute(0, 3, 1, 2).float() - 116) / 64 if is_image else pixels
            if self.bfloat16:
                x = x.contiguous(memory_format=torch.channels_last)
            labels = [task.support_labels[0], task.query_labels[0]]
            support, query = (value.to(self.device) for value in labels)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
                loss = getattr(self, f"_{self.learner}")(x, support, query)
            (loss / len(pool)).backward()
            total += float(loss.detach())
        self.optimiser.step()
        return total / len(pool)

    def _protonet(self, x: torch.Tensor, support: torch.Tensor, query: torch.Tensor) -> Any:
        features = self.network[0](x).float()
        shots, rest = features[: len(support)], features[len(support) :]
        means = torch.stack([shots[support == label].mean(0) for label in range(self.way)])
        return F.cross_entropy(-torch.cdist(rest, means).square() / 64, query)

    def _anil(self, x: torch.Tensor, support: torch.Tensor, query: torch.Tensor) -> Any:
        features = self.network[0](x).float() * 0.1
        shots, rest = features[: len(support)], features[len(support) :]
        head: Any = self.network[1]
        weight, bias = head.weight, head.bias
        for _ in range(self.inner_steps):
            loss = F.cross_entropy(F.linear(shots, weight, bias), support)
            steps = torch.autograd.grad(loss, (weight, bias), create_graph=True)
            weight, bias = weight - 0.5 * steps[0], bias - 0.5 * steps[1]
        return F.cross_entropy(F.linear(rest, weight, bias), query)

    def _maml(self, x: torch.Tensor, support: torch.Tensor, query: torch.Tensor) -> Any:
        parameters: dict[str, torch.Tensor] = dict(self.network.named_parameters())
        for _ in range(self.inner_steps):
            logits = functional_call(self.network, parameters, (x[: len(support)],))
            loss = F.cross_entropy(logits.float(), support)
            steps = torch.autograd.grad(loss, tuple(parameters.values()), create_graph=True)
            moved = zip(parameters.items(), steps, strict=True)
            parameters = {name: value - self.inner_lr * step for (name, value), step in moved}
        logits = functional_call(self.network, parameters, (x[len(support) :],))
        return F.cross_entropy(logits.float(), query)
