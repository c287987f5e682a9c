"""ATS: what it looks at, what it learns, what it leaves alone."""

from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

from derts.config import LearnerConfig, StrategyConfig
from derts.data import ImageTable
from derts.distributed import Group
from derts.errors import DertsError
from derts.learners import ANIL, MAML
from derts.learners.pool_features import distinct_images, evaluation_mode
from derts.selection.ats import AdaptiveScheduler
from derts.selection.ats import strategy as ats
from derts.selection.ats.network import (
    Scheduler,
    gumbel,
    observe_tasks,
    sample_in_order,
    task_signals,
)
from derts.tasks import generator
from derts.training import Trainer
from tests.tiny import tiny

Tables = dict[str, ImageTable]

SMALL = tiny(
    tasks={"way": 3, "shot": 2, "query": 3, "noise": "tasks:0.5"},
    model={"width": 8},
    learner={"name": "anil", "feature_scale": 1.0},
    strategy={"name": "ats"},
    updates=6,
    meta_batch=3,
)


def test_the_scheduler_has_the_papers_shape() -> None:
    scheduler = Scheduler()
    assert scheduler.progress.weight.shape == (100, 5)
    assert [scheduler.context[0].in_features, scheduler.score[0].in_features] == [65, 75]
    assert len(scheduler.readers) == 3


def scheduler_of(trainer: Trainer) -> AdaptiveScheduler:
    assert isinstance(trainer.strategy, AdaptiveScheduler)
    return trainer.strategy


def test_the_scheduler_starts_from_the_seed_of_the_run(letters: Tables) -> None:
    first, again, other = (
        scheduler_of(Trainer(replace(SMALL, seed=seed), letters)).scheduler for seed in (5, 5, 6)
    )
    assert torch.equal(first.progress.weight, again.progress.weight)
    assert not torch.equal(first.progress.weight, other.progress.weight)
    before = torch.get_rng_state()
    Scheduler.from_seed(5)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_real_batch_is_sampled_at_the_temperature(
    letters: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(SMALL, letters)
    strategy = scheduler_of(trainer)
    trainer.train(2)
    sampled: list[torch.Tensor] = []

    def watched(
        scores: torch.Tensor, count: int, noise: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        sampled.append(scores.detach())
        return sample_in_order(scores, count, noise)

    monkeypatch.setattr(ats, "sample_in_order", watched)
    strategy.optimiser.param_groups[0]["lr"] = 0.0  # so that both scores are the same
    trainer.context.update = 2
    for steps, temperature in ((0, 1.0), (100, 0.99**100), (10_000, 0.1)):
        sampled.clear()
        strategy.steps = steps
        strategy.next_batch(trainer.context)
        tried, real = sampled
        torch.testing.assert_close(real * temperature, tried)


def test_the_reward_is_of_clean_tasks_of_validation_classes(letters: Tables) -> None:
    trainer = Trainer(SMALL, letters)
    drawn = scheduler_of(trainer)._draw(trainer.context, 7)
    assert float(drawn.candidates.mislabelled().mean()) > 0.1
    assert float(drawn.rewarding.mislabelled().sum()) == 0
    given = letters["val"].labels[drawn.rewarding.support]
    for classes, labels in zip(given, drawn.rewarding.support_labels, strict=True):
        pairs = set(zip(classes.tolist(), labels.tolist(), strict=True))
        assert len(pairs) == 3  # each label is one validation class


@pytest.mark.parametrize("name", ["anil", "maml"])
def test_signals_are_those_of_autograd(name: str, letters: Tables) -> None:
    config = replace(SMALL, learner=LearnerConfig(name, inner_steps=2))  # type: ignore[arg-type]
    trainer = Trainer(config, letters)
    learner = trainer.learner.double()
    assert isinstance(learner, ANIL | MAML)
    pool = trainer.draw(4, "x", 0)
    found = task_signals(learner, trainer.images, pool)
    learner.eval()
    task = pool[[2]]
    support = learner.features(trainer.images.gather(task.support))
    query = learner.features(trainer.images.gather(task.query))

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits[0], labels[0])

    def free(value: torch.Tensor) -> torch.Tensor:
        return value.detach().requires_grad_()

    if isinstance(learner, ANIL):
        weight, bias = map(free, learner.adapt(support, task.support_labels))
        layers = [weight, bias]
        after = loss(learner.logits((weight, bias), query), task.query_labels)
        weight, bias = map(free, learner.start(1))
        start = [weight, bias]
        before = loss(learner.logits((weight, bias), support), task.support_labels)
    else:
        adapted = learner.adapt(support, task.support_labels)
        values = {key: free(value) for key, value in adapted.parameters.items()}
        layers = list(values.values())
        after = loss(learner.logits(adapted._replace(parameters=values), query), task.query_labels)
        meta = {key: free(value[None]) for key, value in learner.network.named_parameters()}
        start = list(meta.values())
        moved = adapted._replace(parameters=meta)
        before = loss(learner.logits(moved, support), task.support_labels)
    query_gradient = torch.autograd.grad(after, layers)
    support_gradient = torch.autograd.grad(before, start)
    for layer, (a, b) in enumerate(zip(support_gradient, query_gradient, strict=True)):
        cosine = torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), 0)
        torch.testing.assert_close(found.cosines[2, layer], cosine, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(found.norms[2, layer], b.norm(), atol=1e-8, rtol=1e-6)
    torch.testing.assert_close(found.losses[2], after.detach())


def test_sampling_follows_the_scores_and_knows_its_probability() -> None:
    scores = torch.tensor([0.0, 1.0, 2.0, -1.0], requires_grad=True)
    random = generator(0)
    first = torch.zeros(4)
    for _ in range(4000):
        order, likelihood = sample_in_order(scores, 2, gumbel(1, len(scores), random)[0])
        first[order[0]] += 1
    torch.testing.assert_close(first / 4000, scores.detach().softmax(0), atol=0.03, rtol=0)
    p = scores.detach().softmax(0)
    a, b = order.tolist()
    expected = torch.log(p[a]) + torch.log(p[b] / (1 - p[a]))
    torch.testing.assert_close(likelihood.detach(), expected)
    likelihood.backward()
    assert scores.grad is not None


def test_the_virtual_step_leaves_the_learner_as_it_was(letters: Tables) -> None:
    trainer = Trainer(SMALL, letters)
    trainer.train(2)
    before = {key: value.clone() for key, value in trainer.learner.state_dict().items()}
    trainer.context.update = 2
    trainer.strategy.next_batch(trainer.context)
    assert trainer.learner.training
    for key, value in trainer.learner.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize("name", ["anil", "maml"])
def test_what_was_looked_at_serves_the_virtual_step(
    letters: Tables, name: Literal["anil", "maml"]
) -> None:
    config = replace(SMALL, learner=replace(SMALL.learner, name=name))
    trainer = Trainer(config, letters)
    trainer.train(2)
    learner, pool, which = trainer.learner, trainer.draw(6, "x", 0), torch.tensor([4, 1])
    assert isinstance(learner, ANIL | MAML)
    parameters = list(learner.parameters())
    distinct = distinct_images(torch.cat((pool.support, pool.query), 1), len(trainer.images))
    with evaluation_mode(learner), torch.enable_grad():
        signals, outer_loss = observe_tasks(
            learner, trainer.images, pool, distinct, Group(), learner.device
        )
        found = torch.autograd.grad(outer_loss(which), parameters)
        loss = learner.outer_loss(trainer.images, pool[which]).loss
        expected = torch.autograd.grad(loss, parameters)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    for ours, theirs in zip(signals, task_signals(learner, trainer.images, pool), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("rewarded", ["clean", "mislabelled"])
def test_it_learns_to_prefer_what_is_rewarded(letters: Tables, rewarded: str) -> None:
    """Half of the tasks are corrupted; a batch is rewarded by how clean or how corrupted it is.

    The learning rate is a few times ATS's own, to need few updates; at 0.02 the scheduler's LSTMs
    may saturate, and rounding decides whether it learns.
    """
    config = replace(
        SMALL,
        tasks=replace(SMALL.tasks, query=6),
        learner=replace(SMALL.learner, smoothing=0.0),  # forty updates are to teach it something
        strategy=StrategyConfig("ats", warmup=40),
        updates=200,
        meta_batch=6,
    )
    trainer = Trainer(config, letters)
    trainer.train(40)
    strategy, learner = scheduler_of(trainer), trainer.learner
    assert isinstance(learner, ANIL)
    strategy.optimiser.param_groups[0]["lr"] = 0.005
    pool = trainer.draw(200, "check", 1)
    signals = task_signals(learner, trainer.images, pool)

    def share_of_clean() -> float:
        with torch.no_grad():
            probability = strategy.scheduler(signals, torch.tensor([20])).softmax(0)
        return float(probability[pool.mislabelled() == 0].sum())

    before = share_of_clean()

    def reward(context: Any, outer_loss: Any, tried: torch.Tensor, drawn: Any) -> Any:
        mislabelled = drawn.candidates[tried].mislabelled().mean()
        return 1 - mislabelled if rewarded == "clean" else mislabelled

    strategy._reward = reward  # type: ignore[method-assign, assignment]
    for update in range(40, 140):
        trainer.context.update = update
        strategy.next_batch(trainer.context)
    if rewarded == "clean":
        assert share_of_clean() > before + 0.2
    else:
        assert share_of_clean() < before - 0.2


def test_protonet_is_refused_with_the_reason(letters: Tables) -> None:
    config = replace(SMALL, learner=LearnerConfig("protonet"))
    with pytest.raises(DertsError, match=r"adapts by gradient steps: use --learner\.name anil"):
        Trainer(config, letters)


def test_data_without_validation_classes_is_refused(letters: Tables) -> None:
    with pytest.raises(DertsError, match="needs validation classes"):
        Trainer(SMALL, {"train": letters["train"], "test": letters["test"]})
