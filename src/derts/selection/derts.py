"""DERTS: train on a weighted subset of a pool whose gradient stands for the whole pool's.

One round, top to bottom: draw a pool, trust its labels, estimate every task's gradient, drop what
looks noisy, select, weigh, cut into meta-batches. Each step is one call into one file:

    draw_pool                 tasks/sampling.py          N tasks as indices
    majority_vote             labels/votes.py            `--strategy.votes`
    estimate_pool             gradients.py               `--strategy.estimate`
    noisy_tasks               selection/noisy_tasks.py   `--strategy.drop`
    balance_classes, evenness selection/redundancy.py    `--strategy.balance`, `where-it-pays`
    select                    facility_location/         `--strategy.select`
    selection_weights         selection/weights.py       `--strategy.weights`

The paper's method (Zhan & Anderson, 2024) is the preset `paper`; what wins is told in the log of
every round under `parts`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from derts.config import StrategyConfig
from derts.distributed import Group
from derts.errors import DertsError
from derts.facility_location import Engine, Selection, select, select_two_rounds
from derts.gradients import PoolEstimate, with_random_labels
from derts.hardware import one_thread
from derts.kernels import usable_on
from derts.labels.votes import majority_vote
from derts.selection.choice import Choice, DrawnPool, Seed, shuffled_batches
from derts.selection.noisy_tasks import NoiseSplit, noisy_tasks
from derts.selection.redundancy import (
    EVEN,
    balance_classes,
    balanced_size,
    classes_are_uneven,
    evenness,
)
from derts.selection.rounds import PoolStrategy, draw_pool
from derts.selection.strategy import Context, draw_one
from derts.selection.weights import selection_weights
from derts.tasks.randomness import generator

# without the kernel a GPU waits for the launches of each pick: 0.2 s for 960 of 3200
QUICKER_ON_CPU = 4096
IN_ONE_PROCESS = 23_170  # more, and the distances between all pairs exceed 2 GiB


class Derts(PoolStrategy):
    """The method. Every part has a switch in `StrategyConfig`."""

    def check(self, context: Context) -> None:
        super().check(context)
        if self.config.votes:
            majority_vote(draw_one(context, 0))  # refuses tasks that do not say their classes

    def draw(self, context: Context, number: int) -> DrawnPool:
        """Draw a pool, and trust its labels as far as its tasks agree on them."""
        given = pool = draw_pool(context, self.config, number)
        relabelled, note = None, ""
        if self.config.votes:
            votes = majority_vote(given)
            pool, note = votes.pool, votes.note
            relabelled = None if note else votes.relabelled
        reference = None
        if self.config.drop == "automatic":
            reference = with_random_labels(pool, (context.seed, "reference", number))
        return DrawnPool(pool, given, reference, relabelled, note)

    def choose(self, context: Context, drawn: DrawnPool, seed: Seed) -> Choice:
        """Estimate, drop, select, weigh, batch."""
        config, classes = self.config, drawn.pool.classes
        estimate = self.estimate(context, drawn)
        gradients = estimate.gradients[config.estimate]
        finite = (gradients.isfinite().all(1) & estimate.losses.isfinite()).cpu()

        noisy = noisy_tasks(config.drop, estimate, gradients, classes)
        drop_after = config.drop == "paper"
        candidates = (finite if drop_after else finite & ~noisy.drop).nonzero().squeeze(1)
        if not len(candidates):
            raise DertsError(_nothing_left(config, estimate, noisy, finite))
        count = max(1, min(len(candidates), round(config.ratio * len(gradients))))
        rows = gradients[candidates.to(gradients.device)]

        how, weights, objective, even = "uniform", torch.ones(count), None, None
        balanced = config.balance and classes is not None and classes_are_uneven(classes)
        wrong = drawn.relabelled or bool(noisy.drop.any()) or not bool(finite.all())
        if config.select == "where-it-pays" and not balanced and not wrong:
            even = round(evenness(gradients, generator((*seed, "even"))), 4)
        if balanced:
            assert classes is not None
            count = min(count, max(context.meta_batch, balanced_size(classes[candidates])))
            picked = balance_classes(classes[candidates], count, generator(seed))
            how, weights = "balanced", torch.ones(count)
        elif (
            even is not None and even >= EVEN
        ):  # nothing is wrong here and no task stands for others
            picked, how = torch.arange(count), "random"
        elif config.select == "uniform":
            picked = torch.randperm(len(candidates), generator=generator(seed))[:count]
        else:
            selection = facility_location(rows, count, config, seed, context.group)
            picked, how, objective = selection.indices, "facility-location", selection.objective
            with one_thread():
                weights = selection_weights(config.weights, rows.cpu(), picked, selection.weights)

        selected = candidates[picked]
        kept = ~noisy.drop[selected] if drop_after else torch.ones(count, dtype=torch.bool)
        if not bool(kept.any()):
            raise DertsError(_nothing_left(config, estimate, noisy, finite))
        return Choice(
            shuffled_batches(selected[kept], context.meta_batch, seed),
            torch.zeros(len(gradients)).index_copy_(0, selected[kept], weights[kept].cpu().float()),
            selected,
            how,
            estimate,
            gradients,
            drop=None if config.drop == "none" else noisy.drop,
            threshold=None if config.drop == "none" else noisy.threshold,
            objective=objective,
            evenness=even,
            not_finite=int((~finite).sum()),
        )


def facility_location(
    rows: Tensor, count: int, config: StrategyConfig, seed: Seed, group: Group
) -> Selection:
    """`count` of the rows [n, d] that stand for all, on the device that is quicker."""
    engine: Engine = "stochastic" if config.select == "stochastic" else "greedy"
    if len(rows) <= QUICKER_ON_CPU and not (usable_on(rows.device) and engine == "greedy"):
        rows = rows.cpu()
    number = int(torch.randint(2**31, (1,), generator=generator(seed)))
    if len(rows) > IN_ONE_PROCESS and not group.alone:
        return select_two_rounds(rows, count, seed=number, group=group)
    return select(rows, count, engine=engine, seed=number)


def _nothing_left(
    config: StrategyConfig, estimate: PoolEstimate, noisy: NoiseSplit, finite: Tensor
) -> str:
    if not bool(finite.any()):
        return (
            f"none of a round's {len(finite)} tasks has finite numbers: lower --optimiser.lr or "
            "--learner.inner-lr, or set --optimiser.clip 10"
        )
    scores, score = estimate.losses, "query loss"
    if config.drop == "paper":
        scores = torch.linalg.vector_norm(estimate.gradients[config.estimate], dim=1)
        score = "the gradient's norm"
    return (
        f"a round of {len(scores)} tasks keeps none: the limit on {score} is "
        f"{noisy.threshold:.4g}, the tasks reach from {float(scores.min()):.4g} to "
        f"{float(scores.max()):.4g} (mean {float(scores.mean()):.4g}); use --strategy.drop "
        "automatic or none, or lower the learning rate"
    )
