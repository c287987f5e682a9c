"""The fused ResNet-12 against the plain one; the kernels run in benchmarks/kernels.py."""

from __future__ import annotations

import copy

import pytest
import torch

from derts.data import ImageTable
from derts.kernels.fused_resnet12 import can_fuse_resnet12, fused_resnet12_features
from derts.kernels.patch_sums import PatchSums
from derts.kernels.residual_operations import PlainResidual
from derts.models import BatchNorm, ResNet12
from derts.models.batch_norm import set_context

WIDTHS = (16, 16, 32, 32)
OPERATIONS = PlainResidual()


@pytest.mark.parametrize(
    ("channels", "size"),
    [(3, (22, 36)), (1, (18, 16)), (2, (16, 20)), (3, (19, 22)), (4, (16, 16))],
    ids=["colours", "grey", "two", "odd", "four"],
)
@pytest.mark.parametrize("training", [True, False])
def test_features_gradients_and_running_statistics(
    channels: int, size: tuple[int, int], training: bool
) -> None:
    torch.manual_seed(0)
    plain = ResNet12(channels, size, WIDTHS).double()
    for module in plain.modules():
        if isinstance(module, BatchNorm):
            torch.nn.init.normal_(module.weight, 0.3, 1.0)
            torch.nn.init.normal_(module.bias)
    fused = copy.deepcopy(plain)
    random = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (5, *size, channels), generator=random, dtype=torch.uint8)
    pixels = (images.permute(0, 3, 1, 2).double() - 116) / 64
    for backbone in (plain, fused):
        backbone.train()
        backbone(pixels)  # running statistics that are not the initial ones
        backbone.train(training)
    expected = plain(pixels)
    found = fused_resnet12_features(fused, images, OPERATIONS, torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    weights = torch.randn(expected.shape, generator=random, dtype=torch.float64)
    (expected * weights).sum().backward()
    (found * weights).sum().backward()
    gradients = {name: value.grad for name, value in plain.named_parameters()}
    for name, value in fused.named_parameters():
        torch.testing.assert_close(value.grad, gradients[name], rtol=1e-8, atol=1e-8, msg=name)
    buffers = dict(plain.named_buffers())
    for name, buffer in fused.named_buffers():
        torch.testing.assert_close(buffer, buffers[name], rtol=1e-9, atol=1e-9, msg=name)


def test_statistics_from_what_is_known_of_every_image() -> None:
    torch.manual_seed(0)
    plain = ResNet12(3, (16, 18), WIDTHS).double()
    fused = copy.deepcopy(plain)
    pixels = torch.randint(0, 256, (9, 16, 18, 3), dtype=torch.uint8)
    table = ImageTable(pixels, torch.zeros(9, dtype=torch.long), ("a",))
    chosen = torch.tensor([[0, 3], [8, 3]])
    images, products = table.gather(chosen.flatten()), PatchSums(table, OPERATIONS).of(chosen)
    expected = fused_resnet12_features(plain, images, OPERATIONS, torch.float64)
    found = fused_resnet12_features(fused, images, OPERATIONS, torch.float64, products)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    other = fused_resnet12_features(fused, images, OPERATIONS, torch.float64, 2 * products)
    assert not torch.allclose(other, expected)


def test_what_can_be_fused() -> None:
    backbone = ResNet12(3, (32, 32), WIDTHS)
    assert can_fuse_resnet12(backbone)
    assert not can_fuse_resnet12(ResNet12(3, (32, 32), (8, 16, 24, 32)))
    assert not can_fuse_resnet12(torch.nn.Flatten())
    set_context(backbone, 4)
    assert not can_fuse_resnet12(backbone)
