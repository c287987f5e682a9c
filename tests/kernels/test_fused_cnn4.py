"""The fused CNN4 against the plain one; the kernels themselves run in benchmarks/kernels.py."""

from __future__ import annotations

import copy

import pytest
import torch

from derts.data import ImageTable
from derts.kernels.fused_cnn4 import can_fuse, fused_features
from derts.kernels.operations import PlainOperations
from derts.kernels.patch_sums import PatchSums
from derts.models import CNN4
from derts.models.batch_norm import set_groups

PLAIN = PlainOperations()


def pair(channels: int, size: tuple[int, int]) -> tuple[CNN4, CNN4]:
    torch.manual_seed(0)
    backbone = CNN4(channels, size, width=16).double()
    for block in backbone.blocks:
        torch.nn.init.normal_(block.norm.weight, 0.3, 1.0)  # type: ignore[union-attr, arg-type]
        torch.nn.init.normal_(block.norm.bias)  # type: ignore[union-attr, arg-type]
    return backbone, copy.deepcopy(backbone)


def pixels(count: int, size: tuple[int, int], channels: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, *size, channels), generator=random, dtype=torch.uint8)


@pytest.mark.parametrize(("channels", "size"), [(3, (18, 22)), (1, (28, 20)), (2, (16, 16))])
@pytest.mark.parametrize("training", [True, False])
def test_features_gradients_and_running_statistics(
    channels: int, size: tuple[int, int], training: bool
) -> None:
    plain, fused = pair(channels, size)
    images = pixels(7, size, channels)
    for backbone in (plain, fused):
        backbone.train()
        for _ in range(2):  # running statistics that are not the initial ones
            backbone((images.permute(0, 3, 1, 2).double() - 116) / 64)
        backbone.train(training)
    expected = plain((images.permute(0, 3, 1, 2).double() - 116) / 64)
    found = fused_features(fused, images, PLAIN)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)).double()
    (expected * weights).sum().backward()
    (found * weights).sum().backward()
    gradients = {name: value.grad for name, value in plain.named_parameters()}
    for name, value in fused.named_parameters():
        torch.testing.assert_close(value.grad, gradients[name], rtol=1e-8, atol=1e-8, msg=name)
    buffers = dict(plain.named_buffers())
    for name, buffer in fused.named_buffers():
        torch.testing.assert_close(buffer, buffers[name], rtol=1e-9, atol=1e-9, msg=name)


def test_statistics_from_what_is_known_of_every_image() -> None:
    plain, fused = pair(3, (18, 22))
    table = ImageTable(pixels(9, (18, 22), 3), torch.zeros(9, dtype=torch.long), ("a",))
    known = PatchSums(table, PLAIN)
    chosen = torch.tensor([[0, 3], [8, 3]])
    images = table.gather(chosen.flatten())
    expected = fused_features(plain, images, PLAIN)
    found = fused_features(fused, images, PLAIN, known.of(chosen))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    assert not torch.allclose(
        fused_features(fused, images, PLAIN, known.of(chosen[:1]) * 2), expected
    )
    assert PatchSums.worthwhile(table)


def test_what_can_be_fused() -> None:
    backbone = CNN4(3, (84, 84), width=64)
    assert can_fuse(backbone, (84, 84, 3))
    assert not can_fuse(backbone, (85, 84, 3))
    assert not can_fuse(backbone, (84, 84, 4))
    assert not can_fuse(CNN4(3, (84, 84), width=48), (84, 84, 3))
    assert not can_fuse(torch.nn.Flatten(), (84, 84, 3))
    set_groups(backbone, 4)
    assert not can_fuse(backbone, (84, 84, 3))
