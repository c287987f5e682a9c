"""The fused networks against the plain ones; the kernels run in benchmarks/kernels.py."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from derts.data import ImageTable
from derts.kernels.fused_networks import can_fuse
from derts.kernels.fused_networks import fused as fused_network
from derts.kernels.patch_sums import PatchSums
from derts.models import CNN4, BatchNorm, ResNet12
from derts.models.batch_norm import set_context
from derts.models.embedding import normalised

WIDTHS = (16, 16, 32, 32)


def backbone(kind: str, channels: int, size: tuple[int, int]) -> CNN4 | ResNet12:
    torch.manual_seed(0)
    if kind == "cnn4":
        made: CNN4 | ResNet12 = CNN4(channels, size, width=16)
    else:
        made = ResNet12(channels, size, WIDTHS)
    for module in made.modules():
        if isinstance(module, BatchNorm):
            torch.nn.init.normal_(module.weight, 0.3, 1.0)
            torch.nn.init.normal_(module.bias)
    return made.double()


def fused(
    network: CNN4 | ResNet12,
    images: torch.Tensor,
    operations: Any,
    products: torch.Tensor | None = None,
) -> torch.Tensor:
    return fused_network(network, images, operations, products, torch.float64)


def pixels(count: int, size: tuple[int, int], channels: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, *size, channels), generator=random, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("kind", "channels", "size"),
    [
        ("cnn4", 3, (18, 22)),
        ("cnn4", 1, (28, 20)),
        ("cnn4", 2, (16, 16)),
        ("resnet12", 3, (22, 36)),
        ("resnet12", 1, (18, 16)),
        ("resnet12", 2, (16, 20)),
        ("resnet12", 3, (19, 22)),
        ("resnet12", 4, (16, 16)),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_features_gradients_and_running_statistics(
    kind: str, channels: int, size: tuple[int, int], training: bool, plain_operations: Any
) -> None:
    plain = backbone(kind, channels, size)
    other = copy.deepcopy(plain)
    images = pixels(6, size, channels)
    for network in (plain, other):
        network.train()
        network(normalised(images, torch.float64))  # other statistics than the initial ones
        network.train(training)
    expected = plain(normalised(images, torch.float64))
    found = fused(other, images, plain_operations)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)).double()
    (expected * weights).sum().backward()
    (found * weights).sum().backward()
    gradients = {name: value.grad for name, value in plain.named_parameters()}
    for name, value in other.named_parameters():
        torch.testing.assert_close(value.grad, gradients[name], rtol=1e-8, atol=1e-8, msg=name)
    buffers = dict(plain.named_buffers())
    for name, buffer in other.named_buffers():
        torch.testing.assert_close(buffer, buffers[name], rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("kind", ["cnn4", "resnet12"])
def test_statistics_from_what_is_known_of_every_image(kind: str, plain_operations: Any) -> None:
    first = backbone(kind, 3, (18, 22))
    second = copy.deepcopy(first)
    table = ImageTable(pixels(9, (18, 22), 3), torch.zeros(9, dtype=torch.long), ("a",))
    known, chosen = PatchSums(table, plain_operations), torch.tensor([[0, 3], [8, 3]])
    images = table.gather(chosen.flatten())
    expected = fused(first, images, plain_operations)
    found = fused(second, images, plain_operations, known.of(chosen))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    wrong = fused(second, images, plain_operations, 2 * known.of(chosen[:1]))
    assert not torch.allclose(wrong, expected)
    assert PatchSums.worthwhile(table)


def test_which_networks_can_be_fused() -> None:
    cnn4 = CNN4(3, (84, 84), width=64)
    assert can_fuse(cnn4, (84, 84, 3))
    assert not can_fuse(cnn4, (85, 84, 3))
    assert not can_fuse(cnn4, (84, 84, 4))
    assert not can_fuse(CNN4(3, (84, 84), width=48), (84, 84, 3))
    assert not can_fuse(torch.nn.Flatten(), (84, 84, 3))
    set_context(cnn4, 4)
    assert not can_fuse(cnn4, (84, 84, 3))
    resnet12 = ResNet12(3, (32, 32), WIDTHS)
    assert can_fuse(resnet12, (32, 32, 3))
    assert can_fuse(resnet12, (33, 32, 4))
    assert not can_fuse(ResNet12(3, (32, 32), (8, 16, 24, 32)), (32, 32, 3))
    set_context(resnet12, 4)
    assert not can_fuse(resnet12, (32, 32, 3))
