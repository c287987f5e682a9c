"""Stage 4: meta-learners that adapt to a support set and classify a query set.

base           the contract: features, adapt, logits, and the outer loss of a meta-batch
anil, maml, protonet, wrapped (a model of your own)   one learner each
pool_features  a whole pool without a graph, for gradients.py and evaluation.py
"""

from dataclasses import replace
from typing import Any

import torch

from derts.config import LearnerConfig, ModelConfig
from derts.learners.anil import ANIL
from derts.learners.base import Learner, Outcome
from derts.learners.maml import MAML
from derts.learners.protonet import ProtoNet
from derts.models import FineTuned, build_backbone
from derts.models.pretrained import Pretrained, load_pretrained
from derts.tasks.randomness import torch_seeded

__all__ = ["ANIL", "MAML", "AnyLearner", "Learner", "Outcome", "ProtoNet", "build_learner"]

AnyLearner = Learner[Any]


def build_learner(
    learner: LearnerConfig,
    model: ModelConfig,
    *,
    way: int,
    item_shape: tuple[int, ...],
    seed: int = 0,
    pretrained: Pretrained | None = None,
) -> AnyLearner:
    """The learner that a config names, its parameters drawn from `seed` alone.

    Items may be images or, with a frozen backbone, its features of them. `pretrained` is the
    backbone of the config's name where it is loaded already.

    >>> from derts.config import LearnerConfig, ModelConfig
    >>> learner = build_learner(LearnerConfig("anil"), ModelConfig(width=8), way=5,
    ...                         item_shape=(28, 28, 1))
    >>> type(learner).__name__, learner.head_weight.shape
    ('ANIL', torch.Size([5, 8]))
    """
    if model.frozen:
        pretrained = pretrained or load_pretrained(model.backbone, model.weights)
        head = replace(model, backbone=model.head, weights="")
        found = build_learner(learner, head, way=way, item_shape=(pretrained.dim,), seed=seed)
        found.embedding.pretrained = pretrained
        return found
    learner = learner.resolved()
    smoothing = learner.smoothing or 0.0
    with torch_seeded(seed):
        backbone = build_backbone(model, item_shape, pretrained)
        if learner.name == "protonet":
            return ProtoNet(backbone, way, learner.distance_divisor, smoothing)
        assert learner.inner_lr is not None
        assert learner.feature_scale is not None
        inner = learner.inner_steps, learner.inner_lr, learner.feature_scale, learner.first_order
        if learner.name == "anil":
            return ANIL(backbone, way, *inner, smoothing, learner.head)
        return MAML(backbone, way, *inner, smoothing)


def pretrained_weights(learner: AnyLearner) -> dict[str, torch.Tensor]:
    """The weights of a learner's pretrained backbone, frozen or not; none where it has none."""
    found = learner.embedding.pretrained
    if isinstance(learner.backbone, FineTuned):
        found = learner.backbone.pretrained
    if found is None:
        return {}
    return {name: value.cpu().contiguous() for name, value in found.network.state_dict().items()}
