"""One round's choice: drop, select, weigh, batch. Estimates in, batches of pool indices out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from derts.config import StrategyConfig
from derts.distributed import Group
from derts.errors import DertsError
from derts.gradients import PoolEstimate
from derts.selection.class_balance import balance_classes, balanced_size, classes_are_uneven
from derts.selection.noisy_tasks import NoiseSplit, find_noisy
from derts.selection.weights import scale_to_mean_one
from derts.tasks.randomness import generator

Seed = tuple[int | str, ...]
CONFUSION = "error-profile"
"""The estimate that tells which classes are taken for each other."""
FACILITY_LOCATION = ("greedy", "lazy", "stochastic")
"""Engines that choose tasks to stand for their pool."""


@dataclass(frozen=True)
class Picked:
    """Pool indices int64 [k], their weights float [k], and the objective where there is one."""

    indices: torch.Tensor
    weights: torch.Tensor
    objective: float | None = None


@dataclass(frozen=True)
class Candidates:
    """What a strategy picks from: `count` of the pool's tasks at `indices` int64 [n].

    `classes` int64 [N, way], where they are known, are those that the pool's labels stand for.
    """

    config: StrategyConfig
    estimate: PoolEstimate
    indices: torch.Tensor
    count: int
    seed: Seed
    group: Group = field(default_factory=Group)
    classes: torch.Tensor | None = None

    def gradients(self) -> torch.Tensor:
        """Estimated gradients [n, dim] of the candidates."""
        rows = self.estimate.gradients[self.config.estimate]
        return rows[self.indices.to(rows.device)]


Pick = Callable[[Candidates], Picked]


@dataclass(frozen=True)
class Choice:
    """What a round trains on. All tensors on the CPU.

    selected   int64 [K]   pool indices that were selected, before an `after` drop
    batches    lists of pool indices, in the order of training
    weights    float [N]   weight of each pool task, mean 1 over those in `batches`, else 0
    drop       bool [N]    tasks that look noisy
    threshold  their score's limit (None: nothing was asked to be dropped)
    objective  Σ of distances to the nearest selected task (None: uniform choice)
    not_finite how many tasks were left out because their numbers overflowed
    random     so many rounds of as many random tasks are trained on instead
    balanced   whether the tasks were chosen so that classes are used evenly
    """

    selected: torch.Tensor
    batches: tuple[torch.Tensor, ...]
    weights: torch.Tensor
    drop: torch.Tensor
    threshold: float | None = None
    objective: float | None = None
    not_finite: int = 0
    random: int = 0
    balanced: bool = False

    def given_up(self, rounds: int) -> Choice:
        """The same for the record of rounds that train on random tasks: none is preferred."""
        nothing, alike = torch.zeros(0, dtype=torch.long), torch.ones_like(self.weights)
        return replace(self, selected=nothing, weights=alike, random=rounds)

    @property
    def kept(self) -> torch.Tensor:
        """int64: pool indices that are trained on."""
        return torch.cat(self.batches)

    def record(self) -> dict[str, Any]:
        """Numbers for the log: sizes, threshold, objective and how even the weights are."""
        weights = self.weights[self.kept]
        effective = float(weights.sum().square() / weights.square().sum())
        return {
            "pool": len(self.drop),
            "selected": len(self.selected),
            "kept": len(self.kept),
            "looks_noisy": int(self.drop.sum()),
            "not_finite": self.not_finite,
            "threshold": self.threshold,
            "objective": self.objective,
            "largest_weight": round(float(weights.max()), 4),
            "effective_tasks": round(effective, 2),
            **({"random": self.random} if self.random else {}),
            **({"balanced": True} if self.balanced else {}),
        }


def choose(
    config: StrategyConfig,
    estimate: PoolEstimate,
    meta_batch: int,
    seed: Seed,
    pick: Pick,
    processes: Group | None = None,
    classes: torch.Tensor | None = None,
) -> Choice:
    """Choose the tasks of a round from a pool's estimates; `pick` decides among candidates."""
    gradients = estimate.gradients[config.estimate]
    split = _noisy(config, estimate, gradients, classes)
    usable = (gradients.isfinite().all(1) & estimate.losses.isfinite()).cpu()
    if not bool(usable.any()):
        raise DertsError(
            f"none of a round's {len(usable)} tasks has finite numbers: lower --optimiser.lr or "
            "--learner.inner-lr, or set --optimiser.clip 10"
        )
    before = config.drop_when == "before"
    candidates = (usable & ~split.drop if before else usable).nonzero().squeeze(1)
    if not len(candidates):
        raise DertsError(_nothing_left(config, estimate, split))
    count = max(1, min(len(candidates), round(config.ratio * len(gradients))))
    balanced = False
    if classes is not None and _may_choose_freely(config) and classes_are_uneven(classes):
        balanced, pick = True, _pick_balanced
        count = min(count, max(meta_batch, balanced_size(classes[candidates])))
    groups = [candidates]
    sizes = [count]
    if config.batching == "coreset":
        parts = max(1, count // meta_batch)
        order = candidates[torch.randperm(len(candidates), generator=generator((*seed, "parts")))]
        groups = list(order.tensor_split(parts))
        sizes = [min(len(group), -(-count // parts)) for group in groups]
    picked = [
        pick(
            Candidates(
                config, estimate, group, size, (*seed, number), processes or Group(), classes
            )
        )
        for number, (group, size) in enumerate(zip(groups, sizes, strict=True))
    ]
    selected = torch.cat([part.indices for part in picked])
    raw = torch.zeros(len(gradients))
    raw[selected] = torch.cat([part.weights for part in picked])
    keep = torch.ones(len(raw), dtype=torch.bool) if before else ~split.drop
    batches = _batches(
        config, [part.indices[keep[part.indices]] for part in picked], meta_batch, seed
    )
    if not batches:
        raise DertsError(_nothing_left(config, estimate, split))
    trained = torch.cat(batches)
    weights = torch.zeros_like(raw)
    weights[trained] = scale_to_mean_one(raw[trained])
    objectives = [part.objective for part in picked if part.objective is not None]
    return Choice(
        selected,
        tuple(batches),
        weights,
        split.drop,
        None if config.drop_score == "none" else split.threshold,
        sum(objectives) if objectives else None,
        int((~usable).sum()),
        balanced=balanced,
    )


def _pick_balanced(candidates: Candidates) -> Picked:
    """Tasks whose classes are used about evenly, each with the same weight."""
    assert candidates.classes is not None
    classes = candidates.classes[candidates.indices]
    chosen = balance_classes(classes, candidates.count, generator(candidates.seed))
    return Picked(candidates.indices[chosen], torch.ones(len(chosen)))


def _noisy(
    config: StrategyConfig,
    estimate: PoolEstimate,
    gradients: torch.Tensor,
    classes: torch.Tensor | None,
) -> NoiseSplit:
    if config.drop_score == "none":
        return NoiseSplit(torch.zeros(len(gradients), dtype=torch.bool), float("inf"), 0.0)
    reference = {"loss": estimate.reference_losses, "error": estimate.reference_errors}
    return find_noisy(
        _scores(config, estimate).cpu(),
        config.drop_rule,
        config.drop_value,
        reference=reference.get(config.drop_score),
        classes=classes,
    )


def may_be_given_up(config: StrategyConfig, choice: Choice) -> bool:
    """Whether random tasks would do as well, should the pool turn out to be even.

    Not where labels are doubted or tasks left out, and not for choices that are meant to differ.
    """
    left_out = bool(choice.drop.any()) or choice.not_finite > 0 or choice.balanced
    return _may_choose_freely(config) and config.doubt != "posterior" and not left_out


def _may_choose_freely(config: StrategyConfig) -> bool:
    """Whether it is left to derts where and how to select."""
    stands_for_the_pool = config.name == "derts" and config.engine in FACILITY_LOCATION
    return stands_for_the_pool and config.selects == "where-it-pays"


def estimates_of(config: StrategyConfig) -> tuple[str, ...]:
    """The estimates that a round is chosen by."""
    more = (CONFUSION,) if config.engine == "confused" and config.estimate != CONFUSION else ()
    return (config.estimate, *more)


def needs_reference(config: StrategyConfig) -> bool:
    """Whether the drop rule wants to know how randomly labelled tasks would score."""
    return config.drop_rule == "automatic" and config.drop_score in ("loss", "error")


def _scores(config: StrategyConfig, estimate: PoolEstimate) -> torch.Tensor:
    if config.drop_score == "norm":
        norms: torch.Tensor = torch.linalg.vector_norm(estimate.gradients[config.estimate], dim=1)
        return norms
    return estimate.losses if config.drop_score == "loss" else estimate.errors


def _batches(
    config: StrategyConfig,
    parts: list[torch.Tensor],
    meta_batch: int,
    seed: Seed,
) -> list[torch.Tensor]:
    if config.batching == "shuffled":
        (kept,) = parts
        order = torch.randperm(len(kept), generator=generator((*seed, "order")))
        parts = list(kept[order].split(meta_batch))
    return [part for part in parts if len(part)]


def _nothing_left(config: StrategyConfig, estimate: PoolEstimate, split: NoiseSplit) -> str:
    scores = _scores(config, estimate) if config.drop_score != "none" else estimate.losses
    return (
        f"a round of {len(scores)} tasks keeps none: the limit on {config.drop_score} is "
        f"{split.threshold:.4g}, the tasks reach from {float(scores.min()):.4g} to "
        f"{float(scores.max()):.4g} (mean {float(scores.mean()):.4g}); raise "
        "--strategy.drop-value, use --strategy.drop-rule automatic, or lower the learning rate"
    )
