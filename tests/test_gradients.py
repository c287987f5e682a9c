"""Every estimate against autograd of what it claims to be, in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from derts.clock import Clock
from derts.config import LearnerConfig, ModelConfig
from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.evaluation import evaluate
from derts.gradients import (
    ESTIMATES,
    estimate_gradients,
    estimate_pool,
    exact_gradients,
    with_random_labels,
)
from derts.learners import ANIL, MAML, AnyLearner, ProtoNet, build_learner
from derts.learners.pool_features import evaluation_mode
from derts.tasks import TaskNoise, TaskPool, generator

SIZE, WAY, TASKS = 16, 3, 5
LEARNERS = ("anil", "protonet", "maml")


def images() -> ImageTable:
    pixels = torch.randint(0, 256, (60, SIZE, SIZE, 1), dtype=torch.uint8, generator=generator(1))
    return ImageTable(pixels, torch.arange(60) % 6, tuple("abcdef"))


def tasks() -> TaskPool:
    return TaskPool.sample(
        images(), tasks=TASKS, way=WAY, shot=2, query=3, seed=5, noise=TaskNoise(0.5, flip=0.5)
    )


def learner(name: str, seed: int = 2, way: int = WAY) -> AnyLearner:
    config = LearnerConfig(name=name, inner_steps=2, inner_lr=0.3)  # type: ignore[arg-type]
    shape = (SIZE, SIZE, 1)
    built = build_learner(config, ModelConfig(width=4), way=way, item_shape=shape, seed=seed)
    built = built.double()
    with torch.no_grad():  # zero heads and fresh running statistics would hide mistakes
        for number, value in enumerate([*built.parameters(), *built.buffers()]):
            if value.is_floating_point():
                noise = torch.randn(value.shape, generator=generator(number), dtype=value.dtype)
                value.add_(0.2 * noise.abs())
    return built


def one_task(model: AnyLearner, pool: TaskPool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Adapted last layer W [way, d], bias [way] and query features [Q, d] of a pool of one."""
    with evaluation_mode(model):
        support = model.features(images().gather(pool.support))
        query = model.features(images().gather(pool.query))[0]
        adapted = model.adapt(support, pool.support_labels)
    if isinstance(model, ANIL):
        return adapted[0][0] * model.feature_scale, adapted[1][0], query
    assert isinstance(model, ProtoNet)
    weight = 2 * adapted[0] / model.distance_divisor
    return weight, -adapted[0].square().sum(1) / model.distance_divisor, query


@pytest.mark.parametrize("name", ["anil", "protonet"])
def test_estimates_are_gradients_of_the_summed_query_loss_of_the_adapted_last_layer(
    name: str,
) -> None:
    model, pool = learner(name), tasks()
    found = estimate_pool(model, images(), pool, ESTIMATES)
    for number in range(TASKS):
        weight, bias, query = one_task(model, pool[[number]])
        labels = pool.query_labels[number]
        scale = model.feature_scale if isinstance(model, ANIL) else 1.0
        plain = (weight / scale).requires_grad_()  # the layer's own weights
        bias, query = bias.clone().requires_grad_(), query.clone().requires_grad_()
        loss = F.cross_entropy((query * scale) @ plain.T + bias, labels, reduction="sum")
        by_weight, by_bias, by_query = torch.autograd.grad(loss, (plain, bias, query))
        wrong = ((query * scale) @ plain.T + bias).softmax(1) - F.one_hot(labels, WAY)
        profile = torch.stack([wrong[labels == label].sum(0) for label in range(WAY)])
        expected = {
            "logit": by_bias,
            "last-layer": by_weight.flatten(),
            "feature": (by_query * query).mean(0),
            "error-profile": profile.flatten(),
        }
        for estimate, row in expected.items():
            torch.testing.assert_close(found.gradients[estimate][number], row.detach())
        torch.testing.assert_close(by_query.detach(), (wrong @ weight).detach())
        torch.testing.assert_close(found.losses[number], loss.detach() / len(labels))
        accuracy = (wrong + F.one_hot(labels, WAY)).argmax(1).eq(labels).double().mean()
        torch.testing.assert_close(found.accuracies[number], accuracy)


def test_before_adaptation_the_meta_model_is_asked() -> None:
    model, pool = learner("anil"), tasks()
    assert isinstance(model, ANIL)
    found = estimate_gradients(model, images(), pool, "logit-theta")
    _, _, query = one_task(model, pool[[1]])
    logits = query * model.feature_scale @ model.head_weight.T + model.head_bias
    expected = (logits.softmax(1) - F.one_hot(pool.query_labels[1], WAY)).sum(0)
    torch.testing.assert_close(found[1], expected.detach())
    prototypes = estimate_pool(learner("protonet"), images(), pool, ["logit-theta", "logit"])
    assert torch.equal(prototypes.gradients["logit-theta"], prototypes.gradients["logit"])


def test_maml_knows_the_estimates_that_need_logits_only() -> None:
    model, pool = learner("maml"), tasks()
    assert isinstance(model, MAML)
    found = estimate_pool(model, images(), pool, ["logit-theta", "logit", "error-profile"])
    with evaluation_mode(model):
        query = images().gather(pool.query)
        for name, adapted in (
            ("logit-theta", model.start(TASKS)),
            ("logit", model.adapt(images().gather(pool.support), pool.support_labels)),
        ):
            logits = model.logits(adapted, query)
            expected = (logits.softmax(2) - F.one_hot(pool.query_labels, WAY)).sum(1)
            torch.testing.assert_close(found.gradients[name], expected)
    profile = found.gradients["error-profile"].unflatten(1, (WAY, WAY)).sum(1)
    torch.testing.assert_close(profile, found.gradients["logit"])
    with pytest.raises(DertsError, match=r"MAML has no features .* logit-theta, logit, error-prof"):
        estimate_gradients(model, images(), pool, "feature")


def permuted(pool: TaskPool, order: torch.Tensor) -> TaskPool:
    return replace(
        pool, support_labels=order[pool.support_labels], query_labels=order[pool.query_labels]
    )


@pytest.mark.parametrize("name", ["anil", "protonet"])
def test_the_order_of_labels_permutes_logit_and_leaves_feature_alone(name: str) -> None:
    model, pool, order = learner(name), tasks(), torch.tensor([2, 0, 1])
    if isinstance(model, ANIL):  # a head that already tells labels apart knows their order
        torch.nn.init.zeros_(model.head_weight)
        torch.nn.init.zeros_(model.head_bias)
    before = estimate_pool(model, images(), pool, ["logit", "feature"])
    after = estimate_pool(model, images(), permuted(pool, order), ["logit", "feature"])
    torch.testing.assert_close(after.gradients["feature"], before.gradients["feature"])
    torch.testing.assert_close(after.gradients["logit"][:, order], before.gradients["logit"])
    assert not torch.allclose(after.gradients["logit"], before.gradients["logit"])


@pytest.mark.parametrize("name", LEARNERS)
def test_exact_is_autograd_of_the_outer_loss_of_each_task_alone(name: str) -> None:
    model, pool = learner(name), tasks()
    found = exact_gradients(model, images(), pool)
    assert found.shape == (TASKS, sum(value.numel() for value in model.parameters()))
    model.eval()
    for number in (0, TASKS - 1):
        loss = model.outer_loss(images(), pool[[number]]).loss
        parts = torch.autograd.grad(loss, list(model.parameters()))
        torch.testing.assert_close(found[number], torch.cat([part.flatten() for part in parts]))
    together = torch.autograd.grad(model.outer_loss(images(), pool).loss, list(model.parameters()))
    torch.testing.assert_close(found.mean(0), torch.cat([part.flatten() for part in together]))


@pytest.mark.parametrize("name", LEARNERS)
def test_estimating_changes_nothing_and_keeps_no_graph(name: str) -> None:
    model, pool = learner(name), tasks()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = estimate_pool(model, images(), pool, ["logit", "logit-theta", "exact"])
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())
    for value in (*found.gradients.values(), found.losses, found.accuracies):
        assert not value.requires_grad
        assert value.dtype == torch.float64


def test_each_different_image_is_embedded_once() -> None:
    model, pool, counts = learner("anil"), tasks(), []
    hook = model.backbone.register_forward_hook(lambda _, x, y: counts.append(len(y)))
    estimate_pool(model, images(), pool, ["logit-theta", "logit", "last-layer", "feature"])
    hook.remove()
    assert sum(counts) == len(torch.cat((pool.support, pool.query), 1).unique())


@pytest.mark.parametrize("name", LEARNERS)
def test_small_chunks_give_the_same_answer(name: str) -> None:
    model, pool = learner(name), tasks()
    names = [known for known in ESTIMATES if name != "maml" or known in ("logit", "logit-theta")]
    whole = estimate_pool(model, images(), pool, names)
    chunks = estimate_pool(model, images(), pool, names, tasks_at_once=2)
    for key, value in whole.gradients.items():
        torch.testing.assert_close(chunks.gradients[key], value)
    torch.testing.assert_close(chunks.losses, whole.losses)


@pytest.mark.parametrize("name", LEARNERS)
def test_the_reference_is_the_same_images_with_random_labels(name: str) -> None:
    model, pool = learner(name), tasks()
    reference = with_random_labels(pool, (1, "noise"))
    found = estimate_pool(model, images(), pool, [], tasks_at_once=2, reference=reference)
    random = generator((1, "noise"))
    relabelled = replace(
        pool,
        support_labels=torch.randint(WAY, pool.support.shape, generator=random),
        query_labels=torch.randint(WAY, pool.query.shape, generator=random),
    )
    expected = estimate_pool(model, images(), relabelled, [])
    assert found.reference_losses is not None
    torch.testing.assert_close(found.reference_losses, expected.losses)
    assert expected.reference_losses is None


def test_a_clock_tells_embedding_from_estimating() -> None:
    clock = Clock(torch.device("cpu"))
    estimate_pool(learner("anil"), images(), tasks(), clock=clock)
    assert set(clock.seconds) == {"embedding", "estimating"}


def test_losses_come_without_any_estimate() -> None:
    found = estimate_pool(learner("protonet"), images(), tasks(), [])
    assert found.gradients == {}
    assert found.losses.shape == (TASKS,)


def test_a_task_that_overflows_gives_rows_that_are_not_finite() -> None:
    model, pool = learner("anil"), tasks()
    assert isinstance(model, ANIL)
    model.inner_lr = 1e308
    assert not estimate_gradients(model, images(), pool).isfinite().all()


def test_what_is_no_learner_table_or_pool_is_refused() -> None:
    model, table, pool = learner("protonet"), images(), tasks()
    unknown = replace(pool, query=torch.full_like(pool.query, len(table)))
    wrong: list[tuple[Any, Any, Any, str]] = [
        (torch.nn.Linear(1, 1), table, pool, r"Linear is no Learner: make one with derts\.build_"),
        (model, table.images, pool, r"Tensor is no Table: give a derts\.ImageTable"),
        (model, table, [1, 2], r"list is no TaskPool: draw one with derts\.TaskPool\.sample"),
        (model, table, pool[:0], "the pool has no tasks: draw at least one"),
        (model, table, unknown, f"image {len(table)} but .* {len(table)}: give the table that"),
    ]
    for *given, message in wrong:
        for use in (estimate_gradients, evaluate):
            with pytest.raises(DertsError, match=message):
                use(*given)


def test_mistakes_are_named() -> None:
    model, pool = learner("protonet"), tasks()
    with pytest.raises(DertsError, match="'logits'; choose from logit-theta, logit, last-layer"):
        estimate_gradients(model, images(), pool, "logits")
    with pytest.raises(DertsError, match="no tasks"):
        estimate_gradients(model, images(), pool[:0])
    with pytest.raises(DertsError, match=r"have 3 classes .* is for 5: draw tasks with way=5"):
        estimate_gradients(learner("protonet", way=5), images(), pool)
    model.requires_grad_(False)
    with pytest.raises(DertsError, match="no trainable parameter"):
        exact_gradients(model, images(), pool)
