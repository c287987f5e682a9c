"""A model of one's own behaves as our learners do, and works with every stage after it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.evaluation import evaluate
from derts.facility_location import select
from derts.gradients import ESTIMATES, estimate_gradients, estimate_pool
from derts.learners import ANIL, AnyLearner, ProtoNet
from derts.learners.wrapped import OwnLearner
from derts.models import CNN4
from derts.tasks import TaskPool, generator

SHAPE, WAY = (16, 16, 1), 3


def images() -> ImageTable:
    pixels = torch.randint(0, 256, (60, *SHAPE), dtype=torch.uint8, generator=generator(1))
    return ImageTable(pixels, torch.arange(60) % 6, tuple("abcdef"))


def tasks(count: int = 5) -> TaskPool:
    return TaskPool.sample(images(), tasks=count, way=WAY, shot=2, query=3, seed=5)


def backbone() -> CNN4:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return CNN4(channels=1, image_size=SHAPE[:2], width=4).double()


def nearest_mean(support: torch.Tensor, labels: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    members = nn.functional.one_hot(labels, WAY).to(support.dtype)
    means = members.transpose(1, 2) @ support / members.sum(1)[..., None]
    return -torch.cdist(query, means).square() / 64


def linear(model: CNN4, bias: bool = True) -> nn.Linear:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return nn.Linear(model.dim, WAY, bias=bias).double()


def assert_same(first: AnyLearner, second: AnyLearner, names: list[str]) -> None:
    ours = estimate_pool(first, images(), tasks(), names)
    theirs = estimate_pool(second, images(), tasks(), names)
    for name in names:
        torch.testing.assert_close(ours.gradients[name], theirs.gradients[name])
    torch.testing.assert_close(ours.losses, theirs.losses)
    left, right = first.outer_loss(images(), tasks()), second.outer_loss(images(), tasks())
    torch.testing.assert_close(left.loss, right.loss)
    assert evaluate(first, images(), tasks()) == evaluate(second, images(), tasks())


def test_prototypes_equal_protonet() -> None:
    assert_same(OwnLearner(backbone(), SHAPE, WAY), ProtoNet(backbone(), WAY), list(ESTIMATES))


def test_a_function_as_head_equals_protonet() -> None:
    assert_same(
        OwnLearner(backbone(), SHAPE, WAY, nearest_mean), ProtoNet(backbone(), WAY), [*ESTIMATES]
    )


def test_a_linear_head_equals_anil_and_keeps_its_parameters() -> None:
    model = backbone()
    head = linear(model)
    own = OwnLearner(model, SHAPE, WAY, head, inner_steps=2, inner_lr=0.1)
    anil = ANIL(backbone(), WAY, inner_steps=2, inner_lr=0.1, feature_scale=1.0).double()
    with torch.no_grad():
        anil.head_weight.copy_(head.weight)
        anil.head_bias.copy_(head.bias)
    assert_same(own, anil, [name for name in ESTIMATES if name != "exact"])
    own.outer_loss(images(), tasks()).loss.backward()
    assert head.weight.grad is not None
    assert any(value is head.weight for value in own.parameters())


def test_a_linear_head_without_bias_works() -> None:
    model = backbone()
    own = OwnLearner(model, SHAPE, WAY, linear(model, bias=False))
    assert own.outer_loss(images(), tasks()).loss.isfinite()


class Model(nn.Module):
    """Somebody's model: forward classifies, `encode` gives features, images as uint8 NHWC."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(256, 6), nn.BatchNorm1d(6))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net(x.float() / 255)
        return out


def test_a_method_brings_its_module_and_preprocessing_gets_raw_images() -> None:
    model, seen = Model(), []

    def look(pixels: torch.Tensor) -> torch.Tensor:
        seen.append((pixels.dtype, tuple(pixels.shape[1:])))
        return pixels

    own = OwnLearner(model.encode, SHAPE, WAY, preprocess=look)
    assert own.backbone.dim == 6
    assert model.training
    before = {name: value.clone() for name, value in model.state_dict().items()}
    estimate_gradients(own, images(), tasks(), "feature")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert set(seen) == {(torch.uint8, SHAPE)}
    assert len(list(own.parameters())) == len(list(model.parameters()))
    own.outer_loss(images(), tasks()).loss.backward()
    assert all(value.grad is not None for value in model.parameters())


def test_a_function_without_parameters_works() -> None:
    own = OwnLearner(lambda x: x.flatten(1)[:, :32], SHAPE, WAY)
    assert own.device.type == "cpu"
    assert evaluate(own, images(), tasks()).mean >= 0
    assert estimate_gradients(own, images(), tasks()).shape == (5, WAY)


def test_three_lines_are_a_training_loop() -> None:
    learner = OwnLearner(backbone(), SHAPE, WAY)
    pool = TaskPool.sample(images(), tasks=20, way=WAY, shot=2, query=3, seed=0)
    selection = select(estimate_gradients(learner, images(), pool), k=8)
    sizes = []
    for batch, weights in selection.batches(pool, 3, seed=0):
        learner.outer_loss(images(), batch, weights).loss.backward()
        sizes.append(len(batch))
    assert sizes == [3, 3, 2]


def test_mistakes_are_named() -> None:
    model = backbone()
    with pytest.raises(DertsError, match=r"give Linear\(4, 3\)"):
        OwnLearner(model, SHAPE, WAY, nn.Linear(5, WAY))
    with pytest.raises(DertsError, match="head is 'mean'; give 'prototypes'"):
        OwnLearner(model, SHAPE, WAY, "mean")  # type: ignore[arg-type]
    with pytest.raises(DertsError, match=r"\[2, 1, 16, 16\], not \[2, d\]: flatten"):
        OwnLearner(nn.Identity(), SHAPE, WAY)
    with pytest.raises(DertsError, match="not \\[2, d\\]"):
        OwnLearner(lambda x: (x, x), SHAPE, WAY)  # type: ignore[arg-type,return-value]
    computed = linear(model)
    nn.utils.parametrizations.weight_norm(computed)
    with pytest.raises(DertsError, match="not a parameter"):
        OwnLearner(model, SHAPE, WAY, computed)
