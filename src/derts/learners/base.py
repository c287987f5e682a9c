"""The contract of a meta-learner, and what all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from derts.data.table import ImageTable
from derts.hardware import send
from derts.kernels.fused_cnn4 import can_fuse, fused_features
from derts.kernels.fused_resnet12 import can_fuse_resnet12, fused_resnet12_features
from derts.kernels.operations import FusedOperations
from derts.kernels.patch_sums import PatchSums, kernels_know
from derts.kernels.patches import PIXEL_MEAN, PIXEL_SCALE
from derts.kernels.residual_operations import FusedResidual
from derts.learners.bank import FeatureBank
from derts.learners.trust import Trust
from derts.models.batch_norm import set_groups
from derts.tasks.augment import apply_augmentation
from derts.tasks.pool import TaskPool

MEMORY_FOR_TWO = 100 << 30

Adapted = TypeVar("Adapted")
Weigh = Callable[[torch.Tensor], torch.Tensor | None]


@dataclass(frozen=True)
class Outcome:
    """What a forward pass over a meta-batch of T tasks gives.

    loss        scalar with graph: mean over tasks of weight × task loss
    losses      [T] query loss of each task, detached
    accuracies  [T] query accuracy of each task, detached
    """

    loss: torch.Tensor
    losses: torch.Tensor
    accuracies: torch.Tensor


class Learner(nn.Module, ABC, Generic[Adapted]):
    """Adapts to support sets and classifies query sets, all tasks of a batch at once.

    `embeds` says whether `features` is a real embedding that does not depend on the task, so
    that each different image needs to be embedded only once per pool.
    """

    embeds = True

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.precision: torch.dtype = torch.float32
        self.per_task_statistics = False
        self.channels_last = True
        self.fused = False
        self.trust: Trust | None = None
        self.smoothing = 0.0
        self.bank: FeatureBank | None = None
        self.patch_sums: PatchSums | None = None
        self._compiled: Callable[[torch.Tensor], torch.Tensor] | None = None
        self._compiled_tasks = 0

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 [n, height, width, channels] -> float [n, channels, height, width]."""
        dtype = self.dtype if self.precision == torch.float32 else self.precision
        x = images.permute(0, 3, 1, 2).to(dtype)
        if not self.channels_last:
            x = x.contiguous()
        return (x - PIXEL_MEAN) / PIXEL_SCALE

    def embed(self, images: torch.Tensor, products: torch.Tensor | None = None) -> torch.Tensor:
        """uint8 [n, height, width, channels] -> features [n, dim]; what torch.compile compiles.

        `products`: the images' patch products, where they are known.
        """
        if self.fused and can_fuse(self.backbone, images.shape[1:]):
            features = fused_features(self.backbone, images, FusedOperations(), products)
            return features.to(self.dtype)
        if self.fused and can_fuse_resnet12(self.backbone):
            operations, kind = FusedResidual(), torch.bfloat16
            features = fused_resnet12_features(self.backbone, images, operations, kind, products)
            return features.to(self.dtype)
        with torch.autocast(
            images.device.type, torch.bfloat16, enabled=self.precision == torch.bfloat16
        ):
            plain: torch.Tensor = self.backbone(self.normalise(images))
        return plain.to(self.dtype)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """uint8 [T, n, height, width, channels] -> features [T, n, dim]."""
        if self.per_task_statistics:
            set_groups(self.backbone, len(images))
        flat = send(images, self.device).flatten(0, 1)
        compiled = self.training and len(images) == self._compiled_tasks
        run = self._compiled if compiled and self._compiled is not None else self.embed
        return run(flat).reshape(*images.shape[:2], -1)

    def compile_for(self, tasks: int) -> None:
        """Compile the backbone for training meta-batches of `tasks` tasks.

        Other sizes, evaluation among them, take the plain path rather than compile anew.
        """
        # each learner compiles its own code; without this the ninth in a process would not compile
        torch.compiler.reset()
        self._compiled, self._compiled_tasks = torch.compile(self.embed, dynamic=False), tasks

    def captures_on(self, images: ImageTable) -> bool:
        """Whether to record updates as CUDA graphs: these images are, or come, to the GPU."""
        if not (self.fused and self.embeds and images.gathers_to == self.device):
            return False
        if can_fuse_resnet12(self.backbone):
            return holds_activations_twice(self.device)
        return can_fuse(self.backbone, images.image_shape)

    def takes_products(self, images: ImageTable) -> bool:
        """Whether updates on these images are faster where their patch products are known."""
        if not self.fused or not self.embeds or self.per_task_statistics:
            return False
        shape = images.image_shape
        return can_fuse(self.backbone, shape) or (
            can_fuse_resnet12(self.backbone) and kernels_know(shape)
        )

    @abstractmethod
    def adapt(self, features: torch.Tensor, labels: torch.Tensor) -> Adapted:
        """Support features [T, S, dim] and labels [T, S] -> whatever `logits` needs."""

    @abstractmethod
    def logits(self, adapted: Adapted, features: torch.Tensor) -> torch.Tensor:
        """Query features [T, Q, dim] -> logits [T, Q, way]."""

    @abstractmethod
    def start(self, tasks: int) -> Adapted:
        """The meta-model without adaptation, for `tasks` tasks."""

    def forward_tasks(
        self, images: ImageTable, pool: TaskPool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Query losses [T] with graph, and accuracies [T], of the tasks of a meta-batch."""
        indices = torch.cat((pool.support, pool.query), 1)
        features = self._training_features(images, indices, pool.augmentation)
        if self.bank is not None and self.training and pool.augmentation is None:
            self.bank.keep(send(indices, self.device), features)
        support, query = features.tensor_split([pool.support.shape[1]], 1)
        adapted = self.adapt(support, send(pool.support_labels, self.device))
        labels = send(pool.query_labels, self.device)
        logits = self.logits(adapted, query)
        if not self.training:
            return query_losses(logits, labels)
        return query_losses(logits, labels, self.trust, self.smoothing)

    def _training_features(
        self, images: ImageTable, indices: torch.Tensor, augmentation: torch.Tensor | None
    ) -> torch.Tensor:
        """Features [T, n, dim] of the images at indices [T, n], augmented by [T, n, 3]."""
        if augmentation is not None:
            pixels = images.gather(indices)
            return self.features(apply_augmentation(pixels, send(augmentation, pixels.device)))
        known = self.patch_sums
        if known is None or known.table is not images or not self.training:
            return self.features(images.gather(indices))
        products = known.of(send(indices, self.device))
        pixels = images.gather(indices.flatten())
        return self.embed(pixels, products).reshape(*indices.shape, -1)

    def outer_loss(
        self, images: ImageTable, pool: TaskPool, weights: torch.Tensor | Weigh | None = None
    ) -> Outcome:
        """Weighted outer loss of a meta-batch.

        `weights` [T] have mean 1 by convention; a function gets the tasks' losses [T], detached,
        and returns the weights.
        """
        losses, accuracies = self.forward_tasks(images, pool)
        if callable(weights):
            weights = weights(losses.detach())
        if weights is not None:
            weights = send(weights, losses.device).to(losses.dtype)
        weighted = losses if weights is None else losses * weights
        return Outcome(weighted.mean(), losses.detach(), accuracies)


def holds_activations_twice(device: torch.device) -> bool:
    """Whether a GPU has memory for a recorded update of a ResNet-12 beside one that is not.

    Either may take 40 GB for 3,200 images of 84×84.
    """
    total: int = torch.cuda.get_device_properties(device).total_memory
    return total >= MEMORY_FOR_TWO


class ProductLearner(Learner[Adapted]):
    """A learner that asks no more of features than their inner products within a task."""

    @abstractmethod
    def start_logits(self, features: torch.Tensor) -> torch.Tensor:
        """Features [n, dim] -> logits [n, way] of the meta-model without adaptation."""

    @abstractmethod
    def logits_by_products(
        self, products: torch.Tensor, start: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """Query logits [T, Q, way] after adaptation to support labels [T, S].

        products [T, S + Q, S] are inner products of each task's features with its support
        features, start [T, S + Q, way] the `start_logits`. Equal to `logits` of `adapt` but for a
        constant per query image, which no softmax sees.
        """


def query_losses(
    logits: torch.Tensor,
    labels: torch.Tensor,
    trust: Trust | None = None,
    smoothing: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [T, Q, way], labels [T, Q] -> mean cross-entropy [T] and accuracy [T] per task.

    `smoothing` is the share of each target that is spread evenly over all classes.
    """
    targets = labels if trust is None else trust.targets(logits, labels).transpose(1, 2)
    each = F.cross_entropy(
        logits.transpose(1, 2), targets, reduction="none", label_smoothing=smoothing
    )
    losses = each.mean(1)
    accuracies = (logits.detach().argmax(-1) == labels).to(losses.dtype).mean(1)
    return losses, accuracies
