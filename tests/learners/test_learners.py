"""Loss and outer gradient of every learner against a plain loop over tasks, in float64."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from derts.config import LearnerConfig, ModelConfig
from derts.data.table import FeatureTable, ImageTable
from derts.errors import DertsError
from derts.evaluation import accuracies, evaluate
from derts.learners import ANIL, MAML, AnyLearner, ProtoNet, build_learner
from derts.learners.base import query_losses
from derts.learners.pool_features import evaluation_mode, task_features
from derts.models import CNN4, FeatureBackbone
from derts.models.embedding import PIXEL_MEAN, PIXEL_SCALE
from derts.tasks import TaskNoise, TaskPool, generator

SIZE, WAY = 16, 3


def images() -> ImageTable:
    pixels = torch.randint(0, 256, (60, SIZE, SIZE, 2), dtype=torch.uint8, generator=generator(1))
    return ImageTable(pixels, torch.arange(60) % 6, tuple("abcdef"))


def tasks(noisy: bool = False) -> TaskPool:
    noise = TaskNoise(1.0, flip=0.5) if noisy else None
    return TaskPool.sample(images(), tasks=4, way=WAY, shot=2, query=3, seed=5, noise=noise)


def learner(name: str, **settings: object) -> AnyLearner:
    config = LearnerConfig(name=name, inner_steps=2, inner_lr=0.3, **settings)  # type: ignore[arg-type]
    built = build_learner(
        config, ModelConfig(width=4), way=WAY, item_shape=(SIZE, SIZE, 2), seed=2
    ).double()
    with torch.no_grad():  # zero heads would hide mistakes
        for number, value in enumerate(built.parameters()):
            noise = torch.randn(value.shape, generator=generator(number), dtype=value.dtype)
            value.add_(0.2 * noise)
    return built


def plain_forward(
    parameters: Mapping[str, torch.Tensor], x: torch.Tensor, context: int
) -> torch.Tensor:
    """CNN4 written from its definition; BatchNorm statistics of the first `context` images."""
    for block in range(4):
        x = F.conv2d(x, parameters[f"blocks.{block}.conv.weight"], padding=1)
        mean = x[:context].mean((0, 2, 3), keepdim=True)
        variance = (x[:context] - mean).square().mean((0, 2, 3), keepdim=True)
        x = (x - mean) / (variance + 1e-5).sqrt()
        scale = parameters[f"blocks.{block}.norm.weight"][None, :, None, None]
        x = F.max_pool2d(
            F.relu(x * scale + parameters[f"blocks.{block}.norm.bias"][None, :, None, None]), 2
        )
    return x.flatten(1)


def pixels(indices: torch.Tensor) -> torch.Tensor:
    raw = images().images[indices].permute(0, 3, 1, 2).double()
    return (raw - PIXEL_MEAN) / PIXEL_SCALE


def shared_features(model: AnyLearner, pool: TaskPool) -> torch.Tensor:
    """All images of the meta-batch through one forward with shared statistics."""
    x = pixels(torch.cat((pool.support, pool.query), 1).flatten())
    named = dict(model.backbone.named_parameters())
    return plain_forward(named, x, len(x)).reshape(len(pool), -1, 4)


def trust_of(pool: TaskPool, task: int) -> tuple[torch.Tensor, torch.Tensor]:
    trust = torch.ones(len(pool), 5 * WAY) if pool.trust is None else pool.trust
    return trust.double()[task, : WAY * 2], trust.double()[task, WAY * 2 :]


def query_loss(
    logits: torch.Tensor, pool: TaskPool, task: int, smoothing: float = 0.0
) -> torch.Tensor:
    chances, trust = logits.softmax(1), trust_of(pool, task)[1]
    right = chances[torch.arange(len(logits)), pool.query_labels[task]]
    each = -(trust * right + (1 - trust) / WAY).log()
    return ((1 - smoothing) * each - smoothing * chances.log().mean(1)).mean()


def protonet_loss(model: AnyLearner, pool: TaskPool, task: int) -> torch.Tensor:
    features = shared_features(model, pool)[task]
    support, query = features[: WAY * 2], features[WAY * 2 :]
    rows, counts = [], trust_of(pool, task)[0]
    for label in range(WAY):
        mine = pool.support_labels[task] == label
        mean = (counts[mine, None] * support[mine]).sum(0) / counts[mine].sum()
        rows.append(mean if bool(mine.any()) else support.mean(0))
    logits = torch.stack([-(query - row).square().sum(1) / 64.0 for row in rows], 1)
    return query_loss(logits, pool, task)


def anil_loss(model: AnyLearner, pool: TaskPool, task: int) -> torch.Tensor:
    assert isinstance(model, ANIL)
    features = shared_features(model, pool)[task] * model.feature_scale
    support, query = features[: WAY * 2], features[WAY * 2 :]
    weight, bias = model.head_weight, model.head_bias
    for _ in range(2):
        loss = F.cross_entropy(support @ weight.T + bias, pool.support_labels[task])
        steps = torch.autograd.grad(loss, (weight, bias), create_graph=not model.first_order)
        weight, bias = weight - 0.3 * steps[0], bias - 0.3 * steps[1]  # type: ignore[assignment]
    logits = query @ weight.T + bias
    return query_loss(logits, pool, task, model.smoothing)


def maml_loss(model: AnyLearner, pool: TaskPool, task: int) -> torch.Tensor:
    assert isinstance(model, MAML)
    parameters: dict[str, torch.Tensor] = dict(model.network.named_parameters())
    count = WAY * 2

    def logits(x: torch.Tensor) -> torch.Tensor:
        backbone = {name.removeprefix("backbone."): value for name, value in parameters.items()}
        features = plain_forward(backbone, x, count) * model.feature_scale
        return features @ parameters["head.weight"].T + parameters["head.bias"]

    support = pixels(pool.support[task])
    for _ in range(2):
        loss = F.cross_entropy(logits(support), pool.support_labels[task])
        steps = torch.autograd.grad(
            loss, list(parameters.values()), create_graph=not model.first_order
        )
        updated = zip(parameters.items(), steps, strict=True)
        parameters = {name: value - 0.3 * step for (name, value), step in updated}
    both = torch.cat((support, pixels(pool.query[task])))
    return query_loss(logits(both)[count:], pool, task)


Reference = Callable[[AnyLearner, TaskPool, int], torch.Tensor]
REFERENCES: dict[str, Reference] = {
    "protonet": protonet_loss,
    "anil": anil_loss,
    "maml": maml_loss,
}


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("name", list(REFERENCES))
def test_loss_and_outer_gradient_equal_a_plain_loop(
    name: str, first_order: bool, noisy: bool, trusted: bool
) -> None:
    model, pool = learner(name, first_order=first_order), tasks(noisy)
    if trusted:
        trust = torch.rand(len(pool), 5 * WAY, generator=generator(3)).clamp(min=0.05)
        trust[:, ::4] = 1.0
        pool = replace(pool, trust=trust)
    weights = torch.tensor([0.5, 2.0, 0.0, 1.5], dtype=torch.float64)
    outcome = model.outer_loss(images(), pool, weights)
    ours = torch.autograd.grad(outcome.loss, list(model.parameters()))

    losses = torch.stack([REFERENCES[name](model, pool, task) for task in range(len(pool))])
    expected = torch.autograd.grad((losses * weights).sum() / 4, list(model.parameters()))
    exact = 100 if trusted else 1  # trust is float32
    torch.testing.assert_close(
        outcome.losses, losses.detach(), rtol=1e-9 * exact, atol=1e-10 * exact
    )
    for gradient, reference in zip(ours, expected, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-7 * exact, atol=1e-9 * exact)


@pytest.mark.parametrize("name", ["anil", "maml", "protonet"])
def test_tasks_of_another_way_are_refused(name: str) -> None:
    other = TaskPool.sample(images(), tasks=2, way=WAY - 1, shot=1, query=1, seed=0)
    with pytest.raises(DertsError, match=r"have 2 classes but the learner is for 3: .*way=2"):
        learner(name).outer_loss(images(), other)
    for measure in (accuracies, evaluate):
        with pytest.raises(DertsError, match=r"have 2 classes but the learner is for 3: .*way=2"):
            measure(learner(name), images(), other)


def test_second_order_differs_from_first_order() -> None:
    def gradient(first_order: bool) -> torch.Tensor:
        model = learner("maml", first_order=first_order)
        loss = model.outer_loss(images(), tasks()).loss
        return torch.autograd.grad(loss, next(model.backbone.parameters()))[0]

    assert not torch.allclose(gradient(False), gradient(True), rtol=1e-3)


def test_a_class_without_support_images_stays_finite() -> None:
    model = learner("protonet")
    assert isinstance(model, ProtoNet)
    features = torch.randn(1, 4, 4, dtype=torch.float64, generator=generator(0))
    prototypes = model.adapt(features, torch.tensor([[0, 0, 1, 1]]))
    torch.testing.assert_close(prototypes[0, 2], features[0].mean(0))


@pytest.mark.parametrize("name", list(REFERENCES))
def test_evaluation_leaks_nothing_between_query_images(name: str) -> None:
    model, pool = learner(name), tasks()
    with evaluation_mode(model):
        (whole,) = task_features(model, images(), pool)
        adapted = model.adapt(whole.support, pool.support_labels)
        together = model.logits(adapted, whole.query)
        alone = torch.cat([model.logits(adapted, part) for part in whole.query.split(1, 1)], 1)
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("name", list(REFERENCES))
def test_embedding_a_pool_leaves_running_statistics_alone_and_keeps_no_graph(name: str) -> None:
    model, pool = learner(name), tasks()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with evaluation_mode(model):
        parts = list(task_features(model, images(), pool, tasks_at_once=3))
        modes = [model.training]
    assert [*modes, model.training] == [False, True]
    assert all(not part.support.requires_grad for part in parts)
    assert [len(part.pool) for part in parts] == [3, 1]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_pool_too_large_for_memory_gives_the_same_features(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, pool = learner("protonet"), tasks()
    with evaluation_mode(model):
        at_once = torch.cat([part.query for part in task_features(model, images(), pool)])
        monkeypatch.setattr("derts.learners.pool_features.FEATURE_BYTES", 64)
        pieces = [part.query for part in task_features(model, images(), pool, tasks_at_once=1)]
    assert len(pieces) == 4
    torch.testing.assert_close(torch.cat(pieces), at_once)


def test_nothing_begins_the_random_numbers_of_the_gpus_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    backbone, before = FeatureBackbone(8, "linear", width=2), torch.get_rng_state()
    build_learner(LearnerConfig("anil"), ModelConfig(width=4), way=3, item_shape=(16, 16, 1))
    rows = FeatureTable(torch.eye(8).repeat(2, 1), torch.arange(16) // 8, ("a", "b"))
    backbone.fit(rows)
    assert not seeded
    assert torch.equal(torch.get_rng_state(), before)


def test_the_seed_alone_decides_the_parameters() -> None:
    torch.manual_seed(1)
    first = learner("anil").state_dict()
    torch.manual_seed(2)
    second = learner("anil").state_dict()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_bfloat16_stays_near_float32() -> None:
    shape = (SIZE, SIZE, 2)
    model = build_learner(LearnerConfig(), ModelConfig(width=8), way=WAY, item_shape=shape)
    exact = model.outer_loss(images(), tasks()).losses
    model.embedding.precision = torch.bfloat16
    torch.testing.assert_close(
        model.outer_loss(images(), tasks()).losses, exact, rtol=0.1, atol=0.05
    )


@pytest.mark.parametrize("kind", [ANIL, ProtoNet])
def test_inner_products_are_all_that_the_logits_need(kind: type[ANIL] | type[ProtoNet]) -> None:
    model = kind(CNN4(channels=1, image_size=(16, 16), width=4), way=3).double()
    random = torch.Generator().manual_seed(0)
    features = torch.rand(6, 9, 4, generator=random).double()
    labels = torch.randint(2, (6, 4), generator=random)  # the third class has no support image
    if isinstance(model, ANIL):
        torch.nn.init.normal_(model.head_weight, generator=random)
        torch.nn.init.normal_(model.head_bias, generator=random)
    support, query = features[:, :4], features[:, 4:]
    expected = model.logits(model.adapt(support, labels), query)  # type: ignore[arg-type]
    products = features @ support.transpose(1, 2)
    start = model.start_logits(features.flatten(0, 1)).view(6, 9, -1)
    found = model.logits_by_products(products, start, labels)
    torch.testing.assert_close(found.log_softmax(-1), expected.log_softmax(-1))
    if isinstance(model, ANIL):
        torch.testing.assert_close(found, expected)
        before = model.logits(model.start(6), features)
        torch.testing.assert_close(start, before)


@pytest.mark.parametrize("name", ["anil", "protonet", "maml"])
def test_smoothing_spreads_targets_in_training_alone(
    name: str, letters: dict[str, ImageTable]
) -> None:
    table = letters["train"]
    plain, smooth = (
        build_learner(
            LearnerConfig(name, smoothing=share),  # type: ignore[arg-type]
            ModelConfig(width=4),
            way=3,
            item_shape=table.item_shape,
        )
        for share in (0.0, 0.3)
    )
    pool = TaskPool.sample(table, tasks=2, way=3, shot=2, query=3, seed=0)
    for learner in (plain, smooth):
        learner.eval()
    assert torch.equal(plain.outer_loss(table, pool).losses, smooth.outer_loss(table, pool).losses)
    for learner in (plain, smooth):
        learner.train()
    weighed: list[torch.Tensor] = []  # a strategy weighs by losses without smoothing
    spread = smooth.outer_loss(table, pool, weighed.append).losses
    assert not torch.allclose(spread, plain.outer_loss(table, pool).losses)
    torch.testing.assert_close(weighed[0], plain.outer_loss(table, pool).losses)


def test_smoothed_losses_are_those_of_mixed_targets() -> None:
    logits = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0]])
    mixed = 0.8 * torch.nn.functional.one_hot(labels, 3) + 0.2 / 3
    expected = -(mixed * logits.log_softmax(-1)).sum(-1).mean(1)
    torch.testing.assert_close(query_losses(logits, labels, smoothing=0.2)[0], expected)
