"""MAML (Finn et al., 2017): the inner loop adapts every parameter."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from derts.learners.base import Learner, query_losses
from derts.models.batch_norm import set_context

Parameters = dict[str, Tensor]


class AdaptedNetwork(NamedTuple):
    """Each task's own parameters [T, …], and the support images that set its BatchNorm."""

    parameters: Parameters
    support: Tensor | None


class _Network(nn.Module):
    """Backbone and head as one module, so that one call runs both with a task's parameters."""

    def __init__(self, learner: MAML, way: int) -> None:
        super().__init__()
        self.backbone = learner.backbone
        self.head = nn.Linear(int(learner.backbone.dim), way)  # type: ignore[arg-type]
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.feature_scale = learner.feature_scale

    def forward(self, x: Tensor) -> Tensor:
        features = self.backbone(x)
        logits: Tensor = self.head(features.to(self.head.weight.dtype) * self.feature_scale)
        return logits


class MAML(Learner[AdaptedNetwork]):
    """Second-order MAML, all tasks at once through torch.func.

    BatchNorm takes its statistics from each task's support images, in training and evaluation:
    query images never influence each other. There is no embedding apart from the task, so
    `features` hands the images on as they are.
    """

    embeds = False

    def __init__(
        self,
        backbone: nn.Module,
        way: int,
        inner_steps: int = 3,
        inner_lr: float = 0.05,
        feature_scale: float = 0.1,
        first_order: bool = False,
        smoothing: float = 0.0,
    ) -> None:
        super().__init__(backbone, way, smoothing)
        self.inner_steps, self.inner_lr = inner_steps, inner_lr
        self.feature_scale, self.first_order = feature_scale, first_order
        self.network = _Network(self, way)

    def adapt(self, features: Tensor, labels: Tensor) -> AdaptedNetwork:
        """Support images [T, S, height, width, channels], labels [T, S] -> parameters [T, …]."""
        parameters = self.start(len(features)).parameters
        keep_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            for _ in range(self.inner_steps):
                # without a graph every step begins anew; frozen parameters adapt as well
                parameters = {
                    name: x if keep_graph and x.requires_grad else x.detach().requires_grad_()
                    for name, x in parameters.items()
                }
                logits = self.run_tasks(parameters, features, features.shape[1])
                gradients = torch.autograd.grad(
                    query_losses(logits, labels)[0].sum(),
                    list(parameters.values()),
                    create_graph=keep_graph and not self.first_order,
                    materialize_grads=True,
                )
                parameters = {
                    name: value - self.inner_lr * gradient
                    for (name, value), gradient in zip(parameters.items(), gradients, strict=True)
                }
        if not keep_graph:
            parameters = {name: value.detach() for name, value in parameters.items()}
        return AdaptedNetwork(parameters, features)

    def logits(self, adapted: AdaptedNetwork, features: Tensor) -> Tensor:
        """Query images [T, Q, height, width, channels] -> logits [T, Q, way]."""
        support = features if adapted.support is None else adapted.support
        shots = support.shape[1]
        both = torch.cat((support, features), 1)
        return self.run_tasks(adapted.parameters, both, shots)[:, shots:]

    def start(self, tasks: int) -> AdaptedNetwork:
        """The meta-parameters; BatchNorm then takes the query images' own statistics."""
        meta = self.network.named_parameters()
        return AdaptedNetwork({name: x.expand(tasks, *x.shape) for name, x in meta}, None)

    def run_tasks(self, parameters: Parameters, images: Tensor, context: int) -> Tensor:
        """Logits [T, n, way] of images [T, n, height, width, channels], each task's parameters.

        BatchNorm takes its statistics from each task's first `context` images.
        """
        set_context(self.backbone, context)
        found = self.embedding.task_logits(self.feature_scale, parameters, images, context)
        if found is None:
            found = vmap(self.run)(parameters, images)
        return found

    def run(self, parameters: Parameters, images: Tensor) -> Tensor:
        """Logits [n, way] of images [n, height, width, channels] with one set of parameters."""
        network = partial(functional_call, self.network, parameters)
        return self.embedding.run(network, images, self.dtype)
