"""DERTS: train on a weighted subset of a pool whose gradient stands for the whole pool's.

One round, top to bottom: draw a pool, trust its labels, estimate every task's gradient, drop what
looks noisy, select, weigh, cut into meta-batches. Each step is one call into one file:

    context.draw              training/task_drawer.py    N tasks as indices
    majority_vote             labels/votes.py            `--strategy.votes`
    self.estimate             rounds.py -> gradients.py  `--strategy.estimate`
    noisy_tasks               selection/noisy_tasks.py   `--strategy.drop`
    balance_classes, evenness selection/redundancy.py    `--strategy.balance`, `where-it-pays`
    select                    facility_location/         `--strategy.select`
    selection_weights         below                      `--strategy.weights`
    self.into_batches         rounds.py                  what the next updates train on

Labels that are wrong in the data set are left out before tasks are drawn, between the rounds:
training/label_looks.py (`--strategy.judge`). selection/rounds.py calls `draw_pool` in every round
and `choose` where it looks, gives the meta-batches to training/trainer.py one by one, and keeps the
record.

The paper's method (Zhan & Anderson, 2024) is the preset `paper`. The log of every round says under
`parts` which steps acted.
"""

from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from derts.errors import DertsError
from derts.facility_location import Engine, select, select_two_rounds
from derts.gradients import with_random_labels
from derts.hardware import one_thread
from derts.labels.votes import majority_vote
from derts.selection.noisy_tasks import noisy_tasks
from derts.selection.redundancy import EVEN, are_uneven, balance_classes, balanced_size, evenness
from derts.selection.rounds import Choice, DrawnPool, PoolStrategy, Seed, with_mean_one
from derts.selection.strategy import Context
from derts.tasks.randomness import generator

IN_ONE_PROCESS = 23_170  # more, and the distances between all pairs exceed 2 GiB
Weighting = Literal["counts", "none", "calibrated"]

# An estimate sees part of a task's gradient; what it does not see adds Σ w² × its variance to the
# error. 1 takes that variance to be as large as the variance of the estimates.
RIDGE = 1.0


class Picked(NamedTuple):
    """Some of a round's candidates by position [K], their weights [K], and how they were picked."""

    positions: Tensor
    weights: Tensor
    how: str
    objective: float | None = None
    evenness: float | None = None


class Derts(PoolStrategy):
    """The method. Every part has a switch in `StrategyConfig`."""

    def check(self, context: Context) -> None:
        super().check(context)
        if self.config.votes:  # refuses tasks that do not say their classes
            majority_vote(context.draw(1, "check", 0))

    def draw_pool(self, context: Context, number: int) -> DrawnPool:
        """Draw a pool, and trust its labels as far as its tasks agree on them."""
        drawn = super().draw_pool(context, number)
        if self.config.votes:
            drawn = drawn.relabelled_by(majority_vote(drawn.given))
        if self.config.drop == "automatic":  # which asks how random labels would score
            labels = (context.seed, "reference", number)
            drawn = replace(drawn, reference=with_random_labels(drawn.pool, labels))
        return drawn

    def choose(self, context: Context, drawn: DrawnPool, seed: Seed) -> Choice:
        """Estimate, drop, select, weigh, cut into meta-batches."""
        config, classes = self.config, drawn.pool.classes
        estimate = self.estimate(context, drawn)
        gradients = estimate.gradients[config.estimate]
        finite = (gradients.isfinite().all(1) & estimate.losses.isfinite()).cpu()

        noisy = noisy_tasks(config.drop, estimate, gradients, classes)
        usable = finite if config.drop == "paper" else finite & ~noisy.drop  # the paper: afterwards
        candidates = usable.nonzero().squeeze(1)
        if not len(candidates):
            raise self._nothing_left(noisy.threshold, finite)
        count = self.wanted(len(candidates), len(gradients))
        rows = gradients[candidates.to(gradients.device)]
        sound = bool(finite.all()) and not bool(noisy.drop.any())
        if config.balance and classes is not None and are_uneven(classes):
            picked = self.pick_balanced(context, classes[candidates], count, seed)
        else:
            picked = self.pick_by_gradients(context, rows, count, sound, seed)
            if picked.how == "random" and drawn.relabelled:
                picked = picked._replace(how="random-votes")

        selected = candidates[picked.positions]
        stays = ~noisy.drop[selected]
        kept = selected[stays]
        if not len(kept):
            raise self._nothing_left(noisy.threshold, finite)
        choice = self.into_batches(
            context, drawn, seed, kept, picked.weights[stays].cpu().float(),
            selected=selected, select=picked.how, estimate=estimate,
            objective=picked.objective, evenness=picked.evenness, not_finite=int((~finite).sum()),
        )  # fmt: skip
        if config.drop == "none":
            return choice
        return replace(choice, drop=noisy.drop, threshold=noisy.threshold)

    def pick_balanced(self, context: Context, classes: Tensor, count: int, seed: Seed) -> Picked:
        """Candidates, with `classes` [n, way], that use all classes alike: `count` or fewer."""
        count = min(count, max(context.meta_batch, balanced_size(classes)))
        positions = balance_classes(classes, count, generator(seed))
        return Picked(positions, torch.ones(count), "balanced")

    def pick_by_gradients(
        self, context: Context, rows: Tensor, count: int, sound: bool, seed: Seed
    ) -> Picked:
        """`count` of the candidates' gradients [n, d]; `sound`: no task of the pool is left out."""
        config, even = self.config, None
        if config.select == "where-it-pays" and sound:
            even = round(evenness(rows, generator((*seed, "even"))), 4)
            if even >= EVEN:  # no task stands for others
                return Picked(torch.arange(count), torch.ones(count), "random", evenness=even)
        if config.select == "uniform":
            order = torch.randperm(len(rows), generator=generator(seed))
            return Picked(order[:count], torch.ones(count), "uniform")

        number = int(torch.randint(2**31, (1,), generator=generator(seed)))
        if len(rows) > IN_ONE_PROCESS and not context.group.alone:
            selection = select_two_rounds(rows, count, seed=number, group=context.group)
        else:
            engine: Engine = "stochastic" if config.select == "stochastic" else "greedy"
            selection = select(rows, count, engine=engine, seed=number)
        picks, counts = selection.indices, selection.weights
        with one_thread():
            weights = selection_weights(config.weights, rows.cpu(), picks, counts)
        return Picked(picks, weights, "facility-location", selection.objective, even)

    def _nothing_left(self, threshold: float, finite: Tensor) -> DertsError:
        tasks = len(finite)
        if not bool(finite.any()):
            fix = "lower --optimiser.lr or --learner.inner-lr"
            return DertsError(f"none of a round's {tasks} tasks has finite numbers: {fix}")
        score = "gradient norm" if self.config.drop == "paper" else "query loss"
        cause = f"keeps none: the limit on the {score} is {threshold:.4g}"
        fix = "use --strategy.drop automatic or none, or lower --optimiser.lr"
        return DertsError(f"a round of {tasks} tasks {cause}; {fix}")


def selection_weights(
    kind: Weighting, gradients: Tensor, indices: Tensor, counts: Tensor
) -> Tensor:
    """Weights [K] of the selected rows, mean 1, on the device of `counts`.

    counts      how many rows of the pool each stands for (γ, the paper)
    none        all alike
    calibrated  all alike, corrected so that the weighted sum meets the pool's sum

    gradients [N, d] are the pool's, indices [K] the selected rows, counts [K] their γ.

    >>> pool = torch.tensor([[0.0], [0.1], [5.0]])
    >>> selection_weights("counts", pool, torch.tensor([1, 2]), torch.tensor([2.0, 1.0]))
    tensor([1.3333, 0.6667])
    """
    weights = counts if counts.is_floating_point() else counts.float()
    if kind == "none":
        weights = torch.ones_like(weights)
    elif kind == "calibrated":
        weights = calibration(gradients, indices).clamp(min=0).to(weights)
    return with_mean_one(weights)


def calibration(gradients: Tensor, indices: Tensor, ridge: float = RIDGE) -> Tensor:
    """Weights [K] near N/K, perhaps negative, whose weighted sum of rows is near that of all rows.

    w = N/K + δ with Σδ = 0 minimises ‖Σ w g − Σ_pool g‖² + λ‖δ‖², where g are the gradients
    [N, d] less the pool's mean, scaled to a mean squared length of 1 and λ = ridge. A large ridge
    leaves all weights alike; with none and K > d the sums meet.

    >>> calibration(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0, 1]), 1e-9).round()
    tensor([0., 3.])
    """
    pool, count = gradients.detach(), len(indices)
    length = pool.var(0, correction=0).sum().double().sqrt()
    even = len(pool) / count
    weights = torch.full((count,), even, dtype=torch.float64, device=pool.device)
    if float(length) > 0:
        chosen = pool[indices.to(pool.device)].double() - pool.mean(0, dtype=torch.float64)
        chosen = chosen / length
        missing = -even * chosen.sum(0)  # the centred pool sums to 0
        # Σδ = 0 lets each row lose the selection's mean: what is left is a plain ridge problem
        # that is blind to directions in which all selected rows agree.
        rows = chosen - chosen.mean(0)
        level = max(ridge, 1e-12) * torch.eye(min(rows.shape)).to(rows)
        if len(rows) >= rows.shape[1]:
            weights += rows @ torch.linalg.solve(rows.T @ rows + level, missing)
        else:
            weights += torch.linalg.solve(rows @ rows.T + level, rows @ missing)
    return weights.to(pool.dtype)
