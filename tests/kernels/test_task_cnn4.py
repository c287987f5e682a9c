"""MAML's tasks all at once against vmap over CNN4, second order, in float64."""

from __future__ import annotations

import pytest
import torch

from derts.data.table import ImageTable
from derts.kernels.fast_embedding import FastEmbedding
from derts.kernels.task_gradients import convolution, pool
from derts.learners import MAML
from derts.models import CNN4, ResNet12
from derts.tasks import TaskPool, generator


def learner(channels: int, size: tuple[int, int], first_order: bool) -> MAML:
    torch.manual_seed(0)
    made = MAML(CNN4(channels, size, width=8), way=3, inner_lr=0.3, first_order=first_order)
    with torch.no_grad():  # some BatchNorms with a negative weight, and no zero heads
        for value in made.parameters():
            value.add_(torch.randn_like(value), alpha=0.6 if value.ndim == 1 else 0.1)
    return made.double()


def tasks(channels: int, size: tuple[int, int]) -> tuple[ImageTable, TaskPool]:
    pixels = torch.randint(0, 256, (40, *size, channels), generator=generator(1))
    table = ImageTable(pixels.to(torch.uint8), torch.arange(40) % 4, tuple("abcd"))
    return table, TaskPool.sample(table, tasks=3, way=3, shot=2, query=2, seed=0)


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize(("channels", "size"), [(3, (37, 22)), (1, (16, 19)), (4, (16, 16))])
def test_losses_and_outer_gradient_equal_those_by_vmap(
    channels: int, size: tuple[int, int], first_order: bool
) -> None:
    table, pool = tasks(channels, size)
    model, found = learner(channels, size, first_order), []
    fast = FastEmbedding(model.backbone, torch.device("cpu"), torch.float64)
    for embedding in (model.embedding, fast):
        model.embedding = embedding
        outcome = model.outer_loss(table, pool, torch.tensor([0.5, 2.0, 1.0]))
        found.append((outcome.losses, torch.autograd.grad(outcome.loss, list(model.parameters()))))
        with torch.no_grad():
            torch.testing.assert_close(model.outer_loss(table, pool).losses, outcome.losses)
    (losses, gradients), (fast_losses, fast_gradients) = found
    torch.testing.assert_close(fast_losses, losses, rtol=1e-11, atol=1e-11)
    for ours, expected in zip(fast_gradients, gradients, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


def test_other_backbones_go_by_vmap() -> None:
    model = MAML(ResNet12(3, (16, 16), (4, 4, 4, 4)), way=3)
    embedding = FastEmbedding(model.backbone, torch.device("cpu"))
    images = torch.zeros(1, 3, 16, 16, 3, dtype=torch.uint8)
    assert embedding.task_logits(1.0, model.start(1).parameters, images, 3) is None


def test_bfloat16_stays_near_float32() -> None:
    table, pool = tasks(3, (16, 16))
    model, found = learner(3, (16, 16), first_order=False).float(), []
    for precision in (torch.float32, torch.bfloat16):
        model.embedding = FastEmbedding(model.backbone, torch.device("cpu"), precision)
        loss = model.outer_loss(table, pool).loss
        parts = torch.autograd.grad(loss, list(model.parameters()))
        found.append((loss.detach(), torch.cat([part.flatten() for part in parts])))
    (exact, gradient), (rough, rough_gradient) = found
    torch.testing.assert_close(rough, exact, rtol=0.1, atol=0.05)
    assert torch.cosine_similarity(gradient, rough_gradient, 0) > 0.9


def test_gradients_of_gradients_are_those_of_finite_differences() -> None:
    shapes = ((2, 3, 5, 6, 4), (2, 9, 4, 2))
    values, filters = (torch.randn(shape, generator=generator(2)).double() for shape in shapes)
    values, filters = values.requires_grad_(), filters.requires_grad_()
    for context in (2, 3):
        assert torch.autograd.gradgradcheck(lambda x, n=context: pool(x, n), values)
    assert torch.autograd.gradgradcheck(convolution, (values, filters))
