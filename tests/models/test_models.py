"""Backbones: shapes, refusals, and BatchNorm's policies."""

import pytest
import torch

from derts.config import ModelConfig
from derts.errors import DertsError
from derts.models import CNN4, BatchNorm, ResNet12, build_backbone


@pytest.mark.parametrize(("size", "dim"), [((84, 84), 1600), ((28, 28), 64), ((32, 48), 384)])
def test_cnn4_has_the_stated_number_of_features(size: tuple[int, int], dim: int) -> None:
    backbone = CNN4(3, size, 64)
    assert backbone.dim == dim
    assert backbone(torch.zeros(2, 3, *size)).shape == (2, dim)


def test_resnet12_has_twelve_convolutions_on_its_longest_path() -> None:
    backbone = build_backbone(ModelConfig("resnet12", width=64), (84, 84, 3))
    assert isinstance(backbone, ResNet12)
    assert backbone.dim == 512
    convolutions = [child for child in backbone.modules() if isinstance(child, torch.nn.Conv2d)]
    assert sum(module.kernel_size == (3, 3) for module in convolutions) == 12
    weights = sum(value.numel() for value in backbone.parameters())
    assert 7_900_000 < weights < 8_100_000


@pytest.mark.parametrize("name", ["cnn4", "resnet12"])
def test_images_too_small_are_refused(name: str) -> None:
    with pytest.raises(DertsError, match="larger --size"):
        build_backbone(ModelConfig(backbone=name), (8, 8, 3))


def test_batch_norm_equals_torchs_in_its_plain_form() -> None:
    torch.manual_seed(0)
    ours, theirs = BatchNorm(4), torch.nn.BatchNorm2d(4)
    x = torch.randn(6, 4, 5, 5)
    torch.testing.assert_close(ours(x), theirs(x))
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x), theirs(x))


def test_batch_norm_context_uses_the_first_images_only() -> None:
    torch.manual_seed(0)
    norm, x = BatchNorm(4), torch.randn(6, 4, 5, 5)
    norm.context = 3
    torch.testing.assert_close(norm(x)[:3], norm(x[:3]))
    changed = torch.cat((x[:5], 100 * x[5:]))
    torch.testing.assert_close(norm(changed)[:5], norm(x)[:5])
