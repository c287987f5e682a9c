"""ANIL (Raghu et al., 2020): MAML whose inner loop adapts the last layer only."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from derts.learners.base import ProductLearner

Head = tuple[Tensor, Tensor]


class ANIL(ProductLearner[Head]):
    """A few gradient steps of a linear head on the support set, differentiated through.

    The head's gradient is written out, (softmax − one-hot) ⊗ features, so that ordinary autograd
    gives the exact second-order outer gradient and all tasks run as batched products.
    """

    def __init__(
        self,
        backbone: nn.Module,
        way: int,
        inner_steps: int = 3,
        inner_lr: float = 0.5,
        feature_scale: float = 0.1,
        first_order: bool = False,
        smoothing: float = 0.0,
        head: Literal["zeros", "random"] = "zeros",
    ) -> None:
        super().__init__(backbone, way, smoothing)
        self.inner_steps, self.inner_lr = inner_steps, inner_lr
        self.feature_scale, self.first_order = feature_scale, first_order
        dim = int(backbone.dim)  # type: ignore[arg-type]
        # zeros: before it has seen a support set the head prefers no class
        self.head_weight = nn.Parameter(torch.zeros(way, dim))
        self.head_bias = nn.Parameter(torch.zeros(way))
        if head == "random":  # as torch starts a linear layer
            for part in (self.head_weight, self.head_bias):
                nn.init.uniform_(part, -(dim**-0.5), dim**-0.5)

    def adapt(self, features: Tensor, labels: Tensor) -> Head:
        """[T, S, dim], [T, S] -> weight [T, way, dim] and bias [T, way] per task."""
        inputs = features * self.feature_scale
        targets = F.one_hot(labels, self.way).to(inputs.dtype)
        weight, bias = self.start(len(features))
        for _ in range(self.inner_steps):
            probabilities = (inputs @ weight.transpose(1, 2) + bias[:, None]).softmax(-1)
            errors = (probabilities - targets) / labels.shape[1]
            weight_gradient, bias_gradient = errors.transpose(1, 2) @ inputs, errors.sum(1)
            if self.first_order:
                weight_gradient, bias_gradient = weight_gradient.detach(), bias_gradient.detach()
            weight = weight - self.inner_lr * weight_gradient
            bias = bias - self.inner_lr * bias_gradient
        return weight, bias

    def logits(self, adapted: Head, features: Tensor) -> Tensor:
        weight, bias = adapted
        return (features * self.feature_scale) @ weight.transpose(1, 2) + bias[:, None]

    def start_logits(self, features: Tensor) -> Tensor:
        return features * self.feature_scale @ self.head_weight.T + self.head_bias

    def logits_by_products(self, products: Tensor, start: Tensor, labels: Tensor) -> Tensor:
        shots = labels.shape[1]
        targets = F.one_hot(labels, self.way).to(products.dtype)
        # a step moves the head by −lr Σ errors ⊗ (features, 1): the bias adds one to each product
        products = self.inner_lr * (products * self.feature_scale**2 + 1)
        errors = torch.zeros_like(targets)
        for _ in range(self.inner_steps):
            logits = start[:, :shots] - products[:, :shots] @ errors
            errors = errors + (logits.softmax(-1) - targets) / shots
        return start[:, shots:] - products[:, shots:] @ errors

    def start(self, tasks: int) -> Head:
        """The head without adaptation, for each of so many tasks."""
        return self.head_weight.expand(tasks, -1, -1), self.head_bias.expand(tasks, -1)
