"""Strategies that work in rounds: draw a pool, choose from it, train on the choice.

Here is the bookkeeping: warm-up, the next pool drawn while this one trains, several processes,
rounds of random tasks, the log, resuming. What is chosen, and how, is in the strategies.
"""

from __future__ import annotations

from abc import abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from derts.clock import spent_since
from derts.config import StrategyConfig
from derts.errors import DertsError
from derts.gradients import PoolEstimate, check_estimates, estimate_pool
from derts.hardware import one_thread
from derts.labels.votes import Votes
from derts.selection.round_record import RoundRecord, round_event
from derts.selection.strategy import Context, MetaBatch, State, Strategy
from derts.tasks import TaskPool, generator

LONGEST_REST = 8  # rounds of random tasks until a pool is looked at again, at the latest
STATE = (
    "round", "position", "random_batches", "random_rounds", "random_looks", "batches", "weights",
    "noted",
)  # fmt: skip
Seed = tuple[int | str, ...]


@dataclass(frozen=True)
class DrawnPool:
    """A round's tasks."""

    pool: TaskPool  # as they are scored and trained on
    given: TaskPool  # as they were drawn
    reference: TaskPool | None = None  # labelled at random, where the drop asks for it
    relabelled: float | None = None  # share of labels that votes changed (None: no votes)
    note: str = ""  # what could not be done, and what to do about it

    def relabelled_by(self, votes: Votes) -> DrawnPool:
        """The same with the labels that a majority vote over `given` gave."""
        share = None if votes.note else votes.relabelled
        return DrawnPool(votes.pool, self.given, None, share, votes.note)


@dataclass(frozen=True)
class Choice:
    """What a round trains on, on the CPU; N tasks in the pool. None: not looked at."""

    batches: tuple[Tensor, ...]  # pool indices, in the order of training
    weights: Tensor  # float [N]: of each task in `batches`, else 0; a round makes their mean 1
    selected: Tensor  # int64 [K]: pool indices, before a drop after selecting
    # facility-location, balanced, uniform, …; where selecting does not pay: random, or random-votes
    # (random tasks of a pool whose labels votes have changed)
    select: str
    estimate: PoolEstimate | None = None  # of the one kind of gradient that decided
    drop: Tensor | None = None  # bool [N]: tasks that look noisy
    threshold: float | None = None
    objective: float | None = None
    evenness: float | None = None
    not_finite: int = 0  # tasks left out because their numbers overflowed

    @property
    def at_random(self) -> bool:
        """Whether random tasks are trained on instead: no task of the pool is preferred."""
        return self.select == "random"

    @property
    def prefers_none(self) -> bool:
        """Whether random tasks are trained on: fresh ones, or those of the pool."""
        return self.select in ("random", "random-votes")

    @property
    def kept(self) -> Tensor:
        """int64: pool indices that are trained on."""
        return torch.cat(self.batches)

    def settled(self) -> Choice:
        """With weights of mean 1 over what is trained on; all alike where that is random tasks."""
        if self.at_random:
            return replace(self, selected=self.selected[:0], weights=torch.ones_like(self.weights))
        kept, weights = self.kept, torch.zeros_like(self.weights)
        weights[kept] = with_mean_one(self.weights[kept])
        return replace(self, weights=weights)


class PoolStrategy(Strategy):
    """Rounds of: `draw_pool`, `choose` from it, train on the choice.

    During the warm-up, and in a round whose choice does not pay, the tasks are the very ones that
    random sampling would train on; where votes have changed labels, those of `random-votes`. A look
    at a pool costs time, so where one pool after the other does not pay there are 1, 2, 4, then
    always 8 rounds of such tasks from look to look.
    """

    def __init__(self, config: StrategyConfig) -> None:
        self.config = config
        self.round = self.position = 0
        self.random_batches = self.random_rounds = self.random_looks = 0
        self.batches: list[Tensor] = []
        self.weights = torch.zeros(0)
        self.noted = False
        self._checked = False
        self._pool: TaskPool | None = None
        self._ahead: Future[DrawnPool] | None = None
        self._thread = ThreadPoolExecutor(1, "derts-draw")

    def draw_pool(self, context: Context, number: int) -> DrawnPool:
        """The uniformly drawn tasks of a round. Runs in a thread beside training."""
        pool = context.draw(self.config.pool, "pool", number, self.config.pool_images)
        return DrawnPool(pool, pool)

    @abstractmethod
    def choose(self, context: Context, drawn: DrawnPool, seed: Seed) -> Choice:
        """What to train on until the next round."""

    def check(self, context: Context) -> None:
        self._checked = True
        check_estimates(context.learner, (self.config.estimate,))

    def next_batch(self, context: Context) -> MetaBatch:
        if not self._checked:  # a loop that is not ours
            self.check(context)
        if context.update < self.config.warmup:
            return context.random_batch(context.update)
        if not self.random_batches and self.position == len(self.batches):
            self._start_round(context)
        if self.random_batches:
            self.random_batches -= 1
            return context.random_batch(context.update)
        if self._pool is None:  # a resumed run: the pool is drawn again from its seed
            self._pool = self._draw_pinned(context, self.round - 1).pool
        chosen = self.batches[self.position]
        self.position += 1
        return MetaBatch(self._pool[chosen], self.weights[chosen])

    def ahead(self, context: Context) -> TaskPool | None:
        if context.update + 1 < self.config.warmup or self.random_batches:
            return context.random_batch(context.update + 1).pool
        if self._pool is None or self.position == len(self.batches):
            return None
        return self._pool[self.batches[self.position]]

    def labels_changed(self) -> None:
        self.batches, self.position = [], 0
        self.random_batches = self.random_rounds = self.random_looks = 0
        self._pool = self._ahead = None

    def estimate(self, context: Context, drawn: DrawnPool) -> PoolEstimate:
        """One pass over the pool, shared among processes."""
        count, group = len(drawn.pool), context.group
        return estimate_pool(
            context.learner, context.images, drawn.pool, (self.config.estimate,),
            reference=drawn.reference, clock=context.clock, only=group.part(count),
        ).gathered(group, count)  # fmt: skip

    def into_batches(
        self, context: Context, drawn: DrawnPool, seed: Seed,
        kept: Tensor, weights: Tensor | None = None, **told: Any,
    ) -> Choice:  # fmt: skip
        """A choice of the pool indices `kept` [K] with weights [K] (None: all alike), in random
        order; the last of the meta-batches may be shorter. `told` is more of a `Choice`.
        """
        of_pool = torch.zeros(len(drawn.pool))
        of_pool[kept] = torch.ones(len(kept)) if weights is None else weights
        order = torch.randperm(len(kept), generator=generator((*seed, "order")))
        batches = tuple(kept[order].split(context.meta_batch))
        return Choice(batches, of_pool, **{"selected": kept, **told})

    def any_tasks(self, context: Context, drawn: DrawnPool, seed: Seed) -> Choice:
        """As many random tasks of a pool, by its voted labels, as others would select."""
        count = self.wanted(len(drawn.pool), len(drawn.pool))
        return self.into_batches(context, drawn, seed, torch.arange(count), select="random-votes")

    def wanted(self, candidates: int, pool: int) -> int:
        """How many tasks to choose: a share of the pool, as far as there are candidates."""
        return max(1, min(candidates, round(self.config.ratio * pool)))

    def state_dict(self) -> State:
        return {**{name: getattr(self, name) for name in STATE}, "batches": list(self.batches)}

    def load_state_dict(self, state: State) -> None:
        if "round" not in state:  # the state of another strategy's warm-up has none
            return
        batches, pool, rounds = list(state["batches"]), self.config.pool, state["round"]
        most = {
            "position": len(batches),
            "random_batches": LONGEST_REST * pool,
            "random_rounds": LONGEST_REST - 1,
            "random_looks": rounds,
        }
        sound = all(type(state[name]) is int and 0 <= state[name] <= n for name, n in most.items())
        if batches:
            low, high = torch.cat(batches).aminmax()
            sound &= rounds > 0 and len(state["weights"]) == pool and bool(0 <= low <= high < pool)
        if not sound:
            raise ValueError("its round, position or tasks are impossible")
        for name in STATE:
            setattr(self, name, state[name])
        self.batches = batches
        self._pool = self._ahead = None

    def _draw_pinned(self, context: Context, number: int) -> DrawnPool:
        """`draw_pool`, in memory from which a GPU fetches without waiting."""
        drawn = self.draw_pool(context, number)
        if context.learner.device.type != "cuda":
            return drawn
        reference = drawn.reference and drawn.reference.pin_memory()
        return replace(drawn, pool=drawn.pool.pin_memory(), reference=reference)

    def _start_round(self, context: Context) -> None:
        clock, number = context.clock, self.round
        clock.settle("update")
        before = dict(clock.seconds)
        with clock.phase("pool"):
            ahead, self._ahead = self._ahead, None
            drawn = self._draw_pinned(context, number) if ahead is None else ahead.result()
            self._ahead = self._thread.submit(self._draw_pinned, context, number + 1)
        on_gpu = context.learner.device.type == "cuda"
        with clock.phase("selecting"), one_thread() if on_gpu else nullcontext():
            looks = not (self.random_rounds and drawn.relabelled)
            decide = self.choose if looks else self.any_tasks
            choice = decide(context, drawn, (context.seed, "round", number)).settled()
            decided = (list(choice.batches), choice.weights, choice.at_random, choice.prefers_none)
            self.batches, self.weights, at_random, none = context.group.same(decided)
        rest = min(2**self.random_looks, LONGEST_REST) if none else 0
        resting = {"random": rest} if at_random else {}
        if at_random:
            self.random_batches, self.batches = rest * len(self.batches), []
        if looks:
            self.random_rounds = rest - 1 if none and not at_random else 0
            self.random_looks = self.random_looks + 1 if none else 0
        else:
            self.random_rounds -= 1
        self._pool, self.position = drawn.pool, 0
        self.round += 1
        if drawn.note and not self.noted:
            self.noted = True
            context.log({"event": "note", "update": context.update, "text": drawn.note})
        about = {"event": "round", "round": number, "update": context.update}
        taken = {"seconds": spent_since(before, clock.seconds)}
        context.log({**about, **taken, **resting, **round_event(drawn, choice)})
        if context.keep_round is not None and choice.estimate is not None:
            with clock.phase("record"):
                frozen = context.learner.embedding.pretrained is not None
                images = None if frozen else context.images
                record = RoundRecord.of(drawn, choice, images, number, context.update)
                context.keep_round(record)


def with_mean_one(weights: Tensor) -> Tensor:
    """Weights [K] scaled so that their mean is 1.

    >>> with_mean_one(torch.tensor([1.0, 3.0]))
    tensor([0.5000, 1.5000])
    """
    mean = float(weights.mean()) if len(weights) else 0.0
    if not (0 < mean < float("inf")):
        cause = f"{len(weights)} weights with mean {mean} cannot be scaled to mean 1"
        raise DertsError(f"{cause}; select finite gradients, or use the weights 'none'")
    return weights / mean
