"""Stage 4: meta-learners that adapt to a support set and classify a query set."""

from __future__ import annotations

from typing import Any

import torch

from derts.config import LearnerConfig, ModelConfig
from derts.learners.anil import ANIL
from derts.learners.base import Learner, Outcome
from derts.learners.maml import MAML
from derts.learners.protonet import ProtoNet
from derts.models import build_backbone

__all__ = ["ANIL", "MAML", "AnyLearner", "Learner", "Outcome", "ProtoNet", "build_learner"]

AnyLearner = Learner[Any]


def build_learner(
    learner: LearnerConfig,
    model: ModelConfig,
    *,
    way: int,
    item_shape: tuple[int, ...],
    seed: int = 0,
) -> AnyLearner:
    """The learner that a config names, its parameters drawn from `seed` alone.

    >>> from derts.config import LearnerConfig, ModelConfig
    >>> learner = build_learner(LearnerConfig("anil"), ModelConfig(width=8), way=5,
    ...                         item_shape=(28, 28, 1))
    >>> type(learner).__name__, learner.head_weight.shape
    ('ANIL', torch.Size([5, 8]))
    """
    learner = learner.resolved()
    smoothing, per_task = learner.smoothing or 0.0, model.batch_norm == "task"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = build_backbone(model, item_shape)
        if learner.name == "protonet":
            return ProtoNet(backbone, way, learner.distance_divisor, smoothing, per_task)
        assert learner.inner_lr is not None
        assert learner.feature_scale is not None
        inner = learner.inner_steps, learner.inner_lr, learner.feature_scale, learner.first_order
        if learner.name == "anil":
            return ANIL(backbone, way, *inner, smoothing, per_task)
        return MAML(backbone, way, *inner, smoothing)
