"""MAML (Finn et al., 2017): the inner loop adapts every parameter."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from derts.learners.base import Learner
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

    def features(self, images: Tensor, patch_products: Tensor | None = None) -> Tensor:
        """uint8 [T, n, height, width, channels], unchanged but on the model's device."""
        return self.embedding.embedded(images.to(self.device, non_blocking=True))

    def adapt(self, features: Tensor, labels: Tensor) -> AdaptedNetwork:
        """Support images [T, S, height, width, channels], labels [T, S] -> parameters [T, …]."""
        set_context(self.backbone, features.shape[1])

        def loss(parameters: Parameters, images: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(self.run(parameters, images), targets)

        def adapt_one(images: Tensor, targets: Tensor) -> Parameters:
            parameters: Parameters = dict(self.network.named_parameters())
            for _ in range(self.inner_steps):
                gradients = grad(loss)(parameters, images, targets)
                if self.first_order:
                    gradients = {name: value.detach() for name, value in gradients.items()}
                parameters = {
                    name: value - self.inner_lr * gradients[name]
                    for name, value in parameters.items()
                }
            return parameters

        adapted: Parameters = vmap(adapt_one)(features, labels)
        return AdaptedNetwork(adapted, features)

    def logits(self, adapted: AdaptedNetwork, features: Tensor) -> Tensor:
        """Query images [T, Q, height, width, channels] -> logits [T, Q, way]."""
        support = features if adapted.support is None else adapted.support
        shots = support.shape[1]
        set_context(self.backbone, shots)
        both = torch.cat((support, features), 1)
        logits: Tensor = vmap(self.run)(adapted.parameters, both)
        return logits[:, shots:]

    def start(self, tasks: int) -> AdaptedNetwork:
        """The meta-parameters; BatchNorm then takes the query images' own statistics."""
        meta = self.network.named_parameters()
        return AdaptedNetwork({name: x.expand(tasks, *x.shape) for name, x in meta}, None)

    def run(self, parameters: Parameters, images: Tensor) -> Tensor:
        """Logits [n, way] of images [n, height, width, channels] with one set of parameters."""
        network = partial(functional_call, self.network, parameters)
        return self.embedding.run(network, images, self.dtype)
