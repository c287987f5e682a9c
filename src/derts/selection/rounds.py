"""Strategies that work in rounds: draw a pool, score it, choose from it, train on the choice."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from derts.config import StrategyConfig
from derts.errors import DertsError
from derts.gradients import estimate_pool, usable_estimates
from derts.selection.choice import Choice, Pick, Seed, choose, needs_reference
from derts.selection.strategy import Context, MetaBatch, State, Strategy
from derts.tasks.pool import TaskPool


class PoolTasks(Strategy):
    """Rounds of: draw a pool, estimate every task's gradient, drop, `pick`, train.

    During the warm-up the tasks are the ones that random sampling would train on.
    """

    def __init__(self, config: StrategyConfig, pick: Pick) -> None:
        self.config = config
        self.pick = pick
        self.round = 0
        self.position = 0
        self.batches: list[torch.Tensor] = []
        self.weights = torch.zeros(0)
        self._pool: TaskPool | None = None
        self._ahead: Future[TaskPool] | None = None
        self._drawer = ThreadPoolExecutor(1, "derts-draw")

    def check(self, context: Context) -> None:
        possible = usable_estimates(context.learner)
        if self.config.estimate not in possible:
            raise DertsError(
                f"{type(context.learner).__name__} has no estimate {self.config.estimate!r}: "
                f"choose --strategy.estimate from {', '.join(possible)}"
            )

    def next_batch(self, context: Context) -> MetaBatch:
        if context.update < self.config.warmup:
            return MetaBatch(context.draw(context.meta_batch, "batch", context.update))
        if self.position == len(self.batches):
            self._start_round(context)
        if self._pool is None:  # a resumed run: the pool is drawn again from its seed
            self._pool = context.draw(self.config.pool, "pool", self.round - 1)
        chosen = self.batches[self.position]
        self.position += 1
        return MetaBatch(self._pool[chosen], self.weights[chosen])

    def ahead(self, context: Context) -> TaskPool | None:
        if context.update + 1 < self.config.warmup:
            return context.draw(context.meta_batch, "batch", context.update + 1)
        if self._pool is None or self.position == len(self.batches):
            return None
        return self._pool[self.batches[self.position]]

    def state_dict(self) -> State:
        return {
            "round": self.round,
            "position": self.position,
            "batches": list(self.batches),
            "weights": self.weights,
        }

    def load_state_dict(self, state: State) -> None:
        if "round" in state:  # the state of another strategy's warm-up has none
            self.round, self.position = state["round"], state["position"]
            self.batches, self.weights = list(state["batches"]), state["weights"]
            self._pool = self._ahead = None

    def _start_round(self, context: Context) -> None:
        config, clock = self.config, context.clock
        clock.settle("update")
        before = dict(clock.seconds)
        with clock.phase("pool"):
            pool = self._drawn(context)
        reference = (context.seed, "reference", self.round) if needs_reference(config) else None
        estimate = estimate_pool(
            context.learner,
            context.images,
            pool,
            (config.estimate,),
            reference_seed=reference,
            clock=clock,
            only=context.group.part(len(pool)),
        ).gathered(context.group, len(pool))
        with clock.phase("selecting"):
            seed: Seed = (context.seed, "round", self.round)
            choice = choose(config, estimate, context.meta_batch, seed, self.pick, context.group)
            decided = context.group.same((list(choice.batches), choice.weights))
        self.batches, self.weights = decided
        self._pool, self.position = pool, 0
        spent = {
            name: round(total - before.get(name, 0.0), 6) for name, total in clock.seconds.items()
        }
        context.log(
            {
                "event": "round",
                "round": self.round,
                "update": context.update,
                "seconds": {name: value for name, value in spent.items() if value},
                **choice.record(),
                "noise": noise_record(pool, choice),
            }
        )
        self.round += 1

    def _drawn(self, context: Context) -> TaskPool:
        """This round's pool, drawn while the last round trained; then start on the next one."""
        ahead, self._ahead = self._ahead, None
        pool = (
            context.draw(self.config.pool, "pool", self.round) if ahead is None else ahead.result()
        )
        self._ahead = self._drawer.submit(context.draw, self.config.pool, "pool", self.round + 1)
        return pool


def noise_record(pool: TaskPool, choice: Choice) -> dict[str, Any]:
    """Share of wrong labels in the pool, in what was selected, looks noisy, and is trained on.

    For the log alone: no strategy decides by the true labels.
    """
    wrong = pool.mislabelled()

    def share(which: torch.Tensor) -> float | None:
        return round(float(wrong[which].mean()), 6) if len(wrong[which]) else None

    return {
        "pool": share(torch.arange(len(wrong))),
        "selected": share(choice.selected),
        "dropped": share(choice.drop),
        "kept": share(choice.kept),
    }
