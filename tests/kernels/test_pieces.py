"""Images that go through a network in pieces: the same features, statistics and gradients."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from derts.distributed import Group
from derts.kernels.fused_networks import fused
from derts.models import CNN4, BatchNorm, ResNet12
from derts.models.batch_norm import set_total
from derts.models.embedding import normalised
from derts.models.pieces import set_at_once

COUNT = 7


def network(kind: str) -> CNN4 | ResNet12:
    torch.manual_seed(0)
    size = (18, 22)
    made = CNN4(3, size, 16) if kind == "cnn4" else ResNet12(3, size, (16, 16, 32, 32))
    for module in made.modules():
        if isinstance(module, BatchNorm):
            nn.init.normal_(module.weight, 0.3, 1.0)
            nn.init.normal_(module.bias)
    return made.double()


def images() -> Tensor:
    random = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (COUNT, 18, 22, 3), generator=random, dtype=torch.uint8)


def trained(made: CNN4 | ResNet12, features: Tensor) -> dict[str, Tensor]:
    """Features, running statistics and gradients after a backward pass."""
    weights = torch.randn(features.shape, generator=torch.Generator().manual_seed(2)).double()
    (features.square() * weights).sum().backward()
    gradients = {f"{name} gradient": x.grad for name, x in made.named_parameters()}
    found = {"features": features, **dict(made.named_buffers()), **gradients}
    assert all(isinstance(value, Tensor) for value in found.values())
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("kind", ["cnn4", "resnet12"])
@pytest.mark.parametrize("at_once", [1, 3, 6])
@pytest.mark.parametrize("way", ["plain", "by kernels", "with processes"])
def test_pieces_are_the_whole(kind: str, at_once: int, way: str, plain_operations: Any) -> None:
    whole, cut = network(kind), network(kind)
    set_at_once(cut.blocks, at_once)
    if way == "with processes":  # of one
        set_total(cut, Group().total)
    seen = normalised(images(), torch.float64)
    expected = trained(whole, whole(seen))
    if way == "by kernels":
        features = fused(cut, images(), plain_operations, dtype=torch.float64)
    else:
        features = cut(seen)
    found = trained(cut, features)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9, msg=name)


def test_pieces_keep_less_and_evaluation_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = network("resnet12")
    cut = copy.deepcopy(whole)
    set_at_once(cut.blocks, 1)
    seen = normalised(images(), torch.float64)

    def kept(made: nn.Module) -> int:
        sizes: dict[int, int] = {}

        def note(x: Tensor) -> Tensor:
            sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            features = made(seen)
        assert features.requires_grad
        return sum(sizes.values())

    assert kept(cut) < 0.5 * kept(whole)
    monkeypatch.setattr("derts.models.pieces.in_pieces", None)
    with torch.no_grad():
        cut(seen)
    cut.eval()(seen)


def test_bfloat16_in_pieces_is_as_near_as_uncut() -> None:
    made = network("cnn4").float()
    cut, seen = copy.deepcopy(made), normalised(images(), torch.float32)
    set_at_once(cut.blocks, 3)
    exact = made(seen)
    with torch.autocast("cpu", torch.bfloat16):
        uncut, found = copy.deepcopy(made)(seen), cut(seen)
    assert found.dtype == uncut.dtype
    found.float().square().sum().backward()
    uncut_error, error = ((x - exact).detach().square().mean().sqrt() for x in (uncut, found))
    assert float(error) < 1.5 * float(uncut_error)
