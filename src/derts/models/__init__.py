"""Stage 3: backbones, from normalised images, or features, to features.

backbones         cnn4, resnet12: the papers' (with batch_norm, pieces)
pretrained        EfficientNet-Lite0, timm
feature_backbone  layers on features
embedding         how images go through one; kernels/fast_embedding.py does the same faster
"""

from derts.config import ModelConfig
from derts.errors import DertsError
from derts.models.backbones import CNN4, ResNet12
from derts.models.batch_norm import BatchNorm
from derts.models.feature_backbone import FeatureBackbone
from derts.models.pretrained import FineTuned, Pretrained, load_pretrained

__all__ = ["CNN4", "BatchNorm", "FeatureBackbone", "FineTuned", "ResNet12", "build_backbone"]


def build_backbone(
    config: ModelConfig, item_shape: tuple[int, ...], pretrained: Pretrained | None = None
) -> CNN4 | ResNet12 | FeatureBackbone | FineTuned:
    """The backbone a config names, for images of (height, width, channels) or features of (d,).

    A pretrained one is fine-tuned; a frozen one is no part of what learns.

    >>> from derts.config import ModelConfig
    >>> build_backbone(ModelConfig(backbone="cnn4", width=32), (28, 28, 1)).dim
    32
    >>> build_backbone(ModelConfig(backbone="linear"), (1280,)).dim
    128
    """
    name = f"--model.backbone {config.backbone}"
    if config.backbone in ("linear", "mlp", "none"):
        if len(item_shape) == 1:
            return FeatureBackbone(item_shape[0], config.backbone, config.width)
        raise DertsError(f"{name} takes features, and this data is images: choose cnn4 or resnet12")
    if len(item_shape) == 1:
        raise DertsError(f"{name} takes images, and this data is features: choose linear or mlp")
    if config.pretrained:
        pretrained = pretrained or load_pretrained(config.backbone, config.weights)
        pretrained.train_layers(config.fine_tune)
        return FineTuned(pretrained, FeatureBackbone(pretrained.dim, config.head, config.width))
    height, width, channels = item_shape
    if config.backbone == "cnn4":
        return CNN4(channels, (height, width), config.width)
    widths = tuple(config.width * factor for factor in (1, 2, 4, 8))
    return ResNet12(channels, (height, width), widths)
