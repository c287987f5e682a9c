"""OwnLearner: a model of your own, so that your own training loop can choose its tasks."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from derts.errors import DertsError
from derts.learners.anil import ANIL
from derts.learners.base import Learner
from derts.learners.protonet import ProtoNet
from derts.models.embedding import Embedding

Head = Literal["prototypes"] | nn.Linear | Callable[[Tensor, Tensor, Tensor], Tensor]


class OwnLearner(Learner[Any]):
    """Wraps a plain PyTorch model: give what turns images into features, and say how to classify.

    features     module, method of a module or function: images -> features [n, d]. Of a function
                 (not of a method) the parameters are unknown: move and switch its model yourself
    item_shape   (height, width, channels) of your images or (d,) of your features,
                 `table.item_shape`
    way          classes per task
    head         "prototypes": nearest class mean, logits −‖h − mean‖² / distance_divisor;
                 an nn.Linear(d, way): adapted to each support set by inner_steps steps of
                 inner_lr, differentiated through (one without bias gets a bias that starts at 0);
                 a function (support features [T, S, d], support labels [T, S], query features
                 [T, Q, d]) -> logits [T, Q, way]
    preprocess   uint8 [n, height, width, channels] -> what `features` takes; by default floats
                 of about zero mean and unit variance, [n, channels, height, width]. Rows of
                 features go in as they are

    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    >>> learner = OwnLearner(model, item_shape=(8, 8, 1), way=3)
    >>> learner.backbone.dim
    10
    >>> learner.features(torch.zeros(2, 6, 8, 8, 1, dtype=torch.uint8)).shape
    torch.Size([2, 6, 10])
    """

    def __init__(
        self,
        features: Callable[[Tensor], Tensor],
        item_shape: tuple[int, ...],
        way: int = 5,
        head: Head = "prototypes",
        *,
        preprocess: Callable[[Tensor], Tensor] | None = None,
        inner_steps: int = 3,
        inner_lr: float = 0.5,
        distance_divisor: float = 64.0,
    ) -> None:
        super().__init__(_Backbone(features), way)
        self.embedding = Embedding(self.backbone, preprocess)
        dim = self._find_dim(item_shape)
        self.backbone.dim = dim  # type: ignore[assignment]
        self.rule: Learner[Any] | None = None
        size = nn.Module()  # where a rule that sees features only expects a backbone
        size.dim = dim  # type: ignore[assignment]
        if isinstance(head, nn.Linear):
            if (head.in_features, head.out_features) != (dim, way):
                wrong = f"the head is {head} but there are {dim} features and {way} classes"
                raise DertsError(f"{wrong}: give Linear({dim}, {way})")
            if not isinstance(head.weight, nn.Parameter):
                wrong = "the head's weight is not a parameter"
                raise DertsError(f"{wrong}: give a plain nn.Linear or a function")
            self.rule = ANIL(size, way, inner_steps, inner_lr, feature_scale=1.0)
            self.rule.head_weight = head.weight  # the same parameter, for any optimiser
            if isinstance(head.bias, nn.Parameter):
                self.rule.head_bias = head.bias
            self.rule.to(head.weight)
        elif head == "prototypes":
            self.rule = ProtoNet(size, way, distance_divisor)
        elif callable(head):
            self.head: Callable[[Tensor, Tensor, Tensor], Tensor] = head
        else:
            raise DertsError(f"head is {head!r}; give 'prototypes', an nn.Linear or a function")

    def adapt(self, features: Tensor, labels: Tensor) -> Any:
        return self.rule.adapt(features, labels) if self.rule else (features, labels)

    def logits(self, adapted: Any, features: Tensor) -> Tensor:
        if self.rule:
            return self.rule.logits(adapted, features)
        support, labels = adapted
        return self.head(support, labels, features)

    def _find_dim(self, item_shape: tuple[int, ...]) -> int:
        kind = torch.uint8 if len(item_shape) == 3 else torch.float32
        items = torch.zeros(2, *item_shape, dtype=kind, device=self.device)
        training = [module for module in self.modules() if module.training]
        self.eval()
        try:
            with torch.no_grad():
                features: object = self.backbone(self.embedding.inputs(items, self.dtype))
        finally:
            for module in training:
                module.training = True
        shape = list(features.shape) if isinstance(features, Tensor) else type(features)
        if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
            wrong = f"features of 2 items of shape {list(item_shape)} are {shape}, not [2, d]"
            raise DertsError(f"{wrong}: flatten what your model gives")
        return features.shape[1]


class _Backbone(nn.Module):
    """The user's model as a module; `dim` is filled in after a dry run."""

    def __init__(self, features: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.run = features
        owner = getattr(features, "__self__", None)
        # a method such as `model.encode`: its module takes part in eval() and parameters()
        self.owner = owner if isinstance(owner, nn.Module) else None

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)
