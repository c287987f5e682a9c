"""Strategies that work in rounds: draw a pool, score it, choose from it, train on the choice."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from derts.config import StrategyConfig
from derts.errors import DertsError
from derts.gradients import NEED_FEATURES, PoolEstimate, estimate_pool, usable_estimates
from derts.hardware import one_thread, send
from derts.labels.votes import relabel_by_votes
from derts.learners.bank import FeatureBank
from derts.learners.base import ProductLearner
from derts.learners.trust import Trust, share_of_wrong_labels
from derts.selection.choice import (
    Choice,
    Pick,
    Seed,
    choose,
    estimates_of,
    may_be_given_up,
)
from derts.selection.evenness import EVEN, LONGEST_REST, evenness
from derts.selection.pool_drawer import VOTING, PoolDrawer
from derts.selection.random import RandomTasks
from derts.selection.round_record import RoundRecord
from derts.selection.strategy import Context, MetaBatch, State, Strategy, draw_one
from derts.tasks.pool import TaskPool
from derts.tasks.randomness import generator


class PoolTasks(Strategy):
    """Rounds of: draw a pool, estimate every task's gradient, drop, `pick`, train.

    During the warm-up, and in a round whose choice is not needed, the tasks are the ones that
    random sampling would train on. A look at a pool costs time, so where one pool after the other
    is not needed there are 1, 2, then always 4 rounds of such tasks from look to look.
    """

    def __init__(self, config: StrategyConfig, pick: Pick) -> None:
        self.config = config
        self.pick = pick
        self.round = 0
        self.position = 0
        self.random_batches = 0
        self.even_pools = 0
        self.batches: list[torch.Tensor] = []
        self.weights = torch.zeros(0)
        self.wrong_labels = 0.0
        self.bank: FeatureBank | None = None
        self._resumed = self._checked = False
        self._pool: TaskPool | None = None
        self._drawer = PoolDrawer(config)
        self._random = RandomTasks()

    def check(self, context: Context) -> None:
        self._checked = True
        task = draw_one(context, self.config.images_of(len(context.images)))
        if self.config.doubt in VOTING:
            relabel_by_votes(task)
        if self.config.engine == "confused" and task.classes is None:
            raise DertsError(
                "--strategy.engine confused needs to know which classes the labels stand for: give "
                "the pool its classes (TaskPool.classes), or choose another engine"
            )
        if self.config.doubt == "posterior":
            context.learner.trust = Trust(context.learner.device)
        if self.config.bank:
            self.bank = self._make_bank(context)
        possible = usable_estimates(context.learner)
        if self.config.estimate not in possible:
            raise DertsError(
                f"{type(context.learner).__name__} has no estimate {self.config.estimate!r}: "
                f"choose --strategy.estimate from {', '.join(possible)}"
            )

    def _make_bank(self, context: Context) -> FeatureBank:
        learner, estimate = context.learner, self.config.estimate
        by_products = isinstance(learner, ProductLearner) and estimate not in NEED_FEATURES
        if not by_products or not context.group.alone:
            raise DertsError(
                "--strategy.bank needs anil or protonet, an estimate that is made of logits, and "
                "one process: leave it out"
            )
        dtype = learner.dtype if learner.precision == torch.float32 else learner.precision
        dim = int(learner.backbone.dim)  # type: ignore[arg-type]
        bank = FeatureBank(context.images, dim, dtype, learner.device)
        learner.bank = bank
        return bank

    def next_batch(self, context: Context) -> MetaBatch:
        if not self._checked:  # a loop that is not ours
            self.check(context)
        if context.update < self.config.warmup:
            return self._random.next_batch(context)
        if self._resumed and context.learner.trust is not None:
            context.learner.trust.noise.fill_(self.wrong_labels)
        self._resumed = False
        if not self.random_batches and self.position == len(self.batches):
            self._start_round(context)
        if self.random_batches:
            self.random_batches -= 1
            return self._random.next_batch(context)
        if self._pool is None:  # a resumed run: the pool is drawn again from its seed
            self._pool = self._drawer.draw(context, self.round - 1).pool
        chosen = self.batches[self.position]
        self.position += 1
        return MetaBatch(self._pool[chosen], self.weights[chosen])

    def ahead(self, context: Context) -> TaskPool | None:
        if context.update + 1 < self.config.warmup or self.random_batches:
            return self._random.ahead(context)
        if self._pool is None or self.position == len(self.batches):
            return None
        return self._pool[self.batches[self.position]]

    def state_dict(self) -> State:
        return {
            "round": self.round,
            "position": self.position,
            "random_batches": self.random_batches,
            "even_pools": self.even_pools,
            "batches": list(self.batches),
            "weights": self.weights,
            "wrong_labels": self.wrong_labels,
            "bank": None if self.bank is None else self.bank.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        if "round" in state:  # the state of another strategy's warm-up has none
            self._check_state(state)
            self.round, self.position = state["round"], state["position"]
            self.random_batches = state.get("random_batches", 0)
            self.even_pools = state.get("even_pools", 0)
            self.batches, self.weights = list(state["batches"]), state["weights"]
            if self.bank is not None and state.get("bank") is not None:
                self.bank.load_state_dict(state["bank"])
            self.wrong_labels, self._resumed = state.get("wrong_labels", 0.0), True
            self._pool = None
            self._drawer.forget()

    def _check_state(self, state: State) -> None:
        batches, pool = state["batches"], self.config.pool
        sound = 0 <= state["position"] <= len(batches) and state["round"] >= bool(batches)
        rest, even = state.get("random_batches", 0), state.get("even_pools", 0)
        sound = sound and all(type(count) is int and count >= 0 for count in (rest, even))
        sound = sound and rest <= LONGEST_REST * pool and even <= state["round"]
        if batches and sound:
            indices = torch.cat(list(batches))
            sound = len(state["weights"]) == pool and int(indices.min()) >= 0
            sound = sound and int(indices.max()) < pool
        if not sound:
            raise ValueError("its round, position or tasks are impossible")

    def _start_round(self, context: Context) -> None:
        config, clock = self.config, context.clock
        clock.settle("update")
        before = dict(clock.seconds)
        with clock.phase("pool"):
            drawn = self._drawer.next(context, self.round)
        pool = drawn.pool
        if self.bank is not None and self.round == 0:
            self.bank.expire()  # it holds the whole warm-up
        estimate = estimate_pool(
            context.learner,
            context.images,
            pool,
            estimates_of(config),
            reference=drawn.reference,
            probabilities=config.doubt == "posterior",
            clock=clock,
            only=context.group.part(len(pool)),
        ).gathered(context.group, len(pool))
        on_gpu = context.learner.device.type == "cuda"
        if self.bank is not None:
            self.bank.expire()
        with clock.phase("selecting"), one_thread() if on_gpu else nullcontext():
            seed: Seed = (context.seed, "round", self.round)
            choice = choose(
                config, estimate, context.meta_batch, seed, self.pick, context.group, pool.classes
            )
            even = None
            if not drawn.mended and may_be_given_up(config, choice):
                rows = estimate.gradients[config.estimate]
                even = round(evenness(rows, generator((*seed, "even"))), 4)
            given_up = even is not None and even >= EVEN
            decided = context.group.same((list(choice.batches), choice.weights, given_up))
            doubt = self._doubt(context, estimate, pool, choice)
        self.batches, self.weights, given_up = decided
        if given_up:
            longest = LONGEST_REST if self.bank is None else 1  # features must not grow old
            rest = min(2**self.even_pools, longest)
            self.random_batches, self.batches = rest * len(self.batches), []
            choice = choice.given_up(rest)
        self.even_pools = self.even_pools + 1 if given_up else 0
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
                **({} if even is None else {"evenness": even}),
                "noise": drawn.noise(choice),
                **doubt,
            }
        )
        if context.keep_round is not None:
            with clock.phase("record"):
                rows = estimate.gradients[config.estimate]
                context.keep_round(
                    RoundRecord.of(
                        drawn.given,
                        drawn.wrong,
                        context.images,
                        rows,
                        estimate,
                        choice,
                        self.round,
                        context.update,
                    )
                )
        self.round += 1

    def _doubt(
        self, context: Context, estimate: PoolEstimate, pool: TaskPool, choice: Choice
    ) -> dict[str, Any]:
        """Tell the learner which labels to believe, from tasks that do not look noisy."""
        if context.learner.trust is None or estimate.probabilities is None:
            return {}
        kept = ~choice.drop.to(estimate.probabilities.device)
        labels = send(pool.query_labels, kept.device)[kept]
        share = share_of_wrong_labels(estimate.probabilities[kept], labels)
        self.wrong_labels = context.group.same(share)
        context.learner.trust.noise.fill_(self.wrong_labels)
        return {"labels_look_wrong": round(self.wrong_labels, 6)}
