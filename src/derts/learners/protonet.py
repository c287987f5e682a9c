"""ProtoNet (Snell et al., 2017): each class is the mean of its support features."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from derts.learners.base import ProductLearner


class ProtoNet(ProductLearner[Tensor]):
    """Logits are −‖query − prototype‖² / distance_divisor.

    The divisor keeps the softmax soft while features are large: with 1600 features, 64 trains to
    far better accuracy than 1.
    """

    def __init__(
        self, backbone: nn.Module, way: int, distance_divisor: float = 64.0, smoothing: float = 0.0
    ) -> None:
        super().__init__(backbone, way, smoothing)
        self.distance_divisor = distance_divisor

    by_trust = True

    def adapt(self, features: Tensor, labels: Tensor) -> Tensor:
        """[T, S, dim], [T, S] -> prototypes [T, way, dim].

        A class that label noise left without support images gets the mean of the whole support
        set: it stays finite and prefers no class.
        """
        return self._shares(labels, features.dtype).transpose(1, 2) @ features

    def adapt_by_trust(self, features: Tensor, labels: Tensor, trust: Tensor) -> Tensor:
        return self._shares(labels, features.dtype, trust).transpose(1, 2) @ features

    def _shares(self, labels: Tensor, dtype: torch.dtype, trust: Tensor | None = None) -> Tensor:
        """[T, S, way]: how much each support image counts for each prototype."""
        members = F.one_hot(labels, self.way).to(dtype)
        if trust is not None:
            members = members * trust[..., None].to(dtype)
        counts = members.sum(1, keepdim=True)
        return torch.where(counts > 0, members / counts, 1 / labels.shape[1])

    def logits(self, adapted: Tensor, features: Tensor) -> Tensor:
        cross = features @ adapted.transpose(1, 2)
        lengths = features.square().sum(-1)[..., None] + adapted.square().sum(-1)[:, None]
        return (2 * cross - lengths) / self.distance_divisor

    def logits_by_products(self, products: Tensor, start: Tensor, labels: Tensor) -> Tensor:
        shots, shares = labels.shape[1], self._shares(labels, products.dtype)
        cross = products @ shares  # of each image with each prototype
        lengths = (cross[:, :shots] * shares).sum(1, keepdim=True)
        return (2 * cross[:, shots:] - lengths) / self.distance_divisor
