"""Stage 7: the training loop, the same for every learner and strategy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from derts.clock import SELECTION_PHASES, TRAINING_PHASES, Clock
from derts.config import TaskConfig, TrainConfig
from derts.data.streamed import StreamedTable
from derts.data.table import ImageTable
from derts.distributed import Group
from derts.errors import DertsError
from derts.evaluation import Evaluation, evaluate
from derts.learners import build_learner
from derts.learners.base import Outcome
from derts.progress import Advance
from derts.selection import build_strategy
from derts.selection.strategy import Context, MetaBatch
from derts.tasks import Noise, SwapNoise, TaskNoise, TaskPool, TaskSampler
from derts.training.bad_numbers import IN_A_ROW, GuardedStep, bad_numbers, usable_losses
from derts.training.captured import CapturedUpdate
from derts.training.hardware import choose_device, place_learner, place_table
from derts.training.shared import outer_gradient
from derts.training.window import BadStreak, Window

Log = Callable[[dict[str, Any]], None]


def task_noise(tasks: TaskConfig) -> Noise | None:
    """The noise that a task config names."""
    if tasks.noise == "swap":
        return SwapNoise(tasks.swap_rate, tasks.swap_limit)
    return TaskNoise(tasks.noisy_fraction, tasks.flip) if tasks.noise == "tasks" else None


class Trainer:
    """Trains one learner on one table; `state_dict` holds all that is needed to go on.

    >>> from derts.config import *
    >>> from derts.data import glyphs
    >>> config = TrainConfig(model=ModelConfig(width=8), tasks=TaskConfig(shot=1, query=1),
    ...                      updates=2, meta_batch=2)
    >>> trainer = Trainer(config, glyphs(characters=40, images_per_character=4))
    >>> trainer.train()
    >>> trainer.update
    2
    """

    def __init__(
        self,
        config: TrainConfig,
        tables: Mapping[str, ImageTable],
        log: Log = lambda event: None,
        group: Group | None = None,
    ) -> None:
        self.config = config = config.resolved()
        self.group = group or Group()
        self.device = self.group.device or choose_device(config.hardware)
        self.tables = tables
        self.images = place_table(self.split("train"), self.device, config.hardware)
        self.sampler = TaskSampler(self.images, training_classes(config.tasks))
        self.learner = build_learner(
            config.learner,
            config.model,
            way=config.tasks.way,
            image_shape=self.images.image_shape,
            seed=config.seed,
        )
        if not self.group.alone:
            # messages between processes cannot be compiled
            config = replace(config, hardware=replace(config.hardware, compile=False))
        place_learner(self.learner, config, self.device)
        self.captures = self.group.alone and self.learner.captures_on(self.images)
        self._captured: CapturedUpdate | None = None
        assert config.optimiser.lr is not None
        self.optimiser = torch.optim.AdamW(
            self.learner.parameters(),
            # a graph reads its learning rate from memory
            lr=torch.tensor(config.optimiser.lr, device=self.device)
            if self.captures
            else config.optimiser.lr,
            weight_decay=config.optimiser.weight_decay,
            fused=self.device.type == "cuda",
            capturable=self.captures,
        )
        self.strategy = build_strategy(config.strategy)
        self.clock = Clock(self.device)
        self.log = log
        self.update = 0
        self.tasks_trained = 0
        self._ahead: tuple[tuple[int, str, int, int], TaskPool] | None = None
        self.guard = GuardedStep(self.learner, self.optimiser)
        self.streak = BadStreak()
        self.window = Window()
        self.context = Context(
            self.learner,
            self.images,
            self.draw,
            config.meta_batch,
            seed=config.seed,
            clock=self.clock,
            log=log,
            validation_images=self._validation_images(),
            draw_validation=self.draw_validation,
            group=self.group,
        )
        self.draw(1, "check", 0)  # impossible tasks are refused before the first update
        self.strategy.check(self.context)
        if config.model.drop_block:
            torch.manual_seed(config.seed + self.group.rank)

    def split(self, name: str) -> ImageTable:
        """A split of the data by name."""
        if name not in self.tables:
            raise DertsError(
                f"the data has no split {name!r}, only {', '.join(self.tables)}: prepare one"
            )
        return self.tables[name]

    def draw(self, tasks: int, purpose: str, number: int, images: int = 0) -> TaskPool:
        """Fresh training tasks, the same for the same arguments and run seed.

        With `images`, of about that many different ones together.
        """
        settings, wanted = self.config.tasks, (tasks, purpose, number, images)
        if self._ahead is not None and self._ahead[0] == wanted:
            return self._ahead[1]
        drawn = self.sampler.draw(
            tasks=tasks,
            way=settings.way,
            shot=settings.shot,
            query=settings.query,
            seed=(self.config.seed, purpose, number),
            noise=task_noise(settings),
            images=images,
        )
        if purpose == "batch" and number == self.update + 1:
            self._ahead = wanted, drawn  # asked for to be prefetched, and soon asked for again
        return drawn

    def draw_validation(self, tasks: int, purpose: str, number: int, images: int = 0) -> TaskPool:
        """Fresh clean tasks of validation classes."""
        settings = self.config.tasks
        return self._validation_sampler.draw(
            tasks=tasks,
            way=settings.way,
            shot=settings.shot,
            query=settings.query,
            seed=(self.config.seed, purpose, number),
            images=images,
        )

    def _validation_images(self) -> ImageTable | None:
        """Beside the model where the strategy uses them, else where they are."""
        found = self.tables.get("val")
        if found is None or self.config.strategy.name != "ats":
            return found
        return place_table(found, self.device, self.config.hardware)

    @cached_property
    def _validation_sampler(self) -> TaskSampler:
        return TaskSampler(self.split("val"))

    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        base = self.config.optimiser.lr or 0.0
        if self.config.optimiser.schedule == "constant":
            return base
        return base * 0.5 * (1 + math.cos(math.pi * self.update / self.config.updates))

    def train(
        self,
        until: int | None = None,
        advance: Advance = lambda count=1, note=None: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Train up to an update (default: the last) or until `stopping` says so.

        `advance` hears of progress. Where `stopping` ends it, the event under way stays open and
        is part of `state_dict`: the run's record does not show the stop.
        """
        until = self.config.updates if until is None else min(until, self.config.updates)
        self.learner.train()
        if not self.window.values:
            self.window.before = dict(self.clock.seconds)
        while self.update < until and not self._must_stop(stopping):
            self.window.values.append(self.step())
            at_event = self.update % self.config.log_every == 0 or self.update == until
            if at_event or self.update % IN_A_ROW == 0:
                self._look()
            if at_event:
                advance(len(self.window.values), self._log_window())

    def step(self) -> torch.Tensor:
        """One update; returns its mean loss, mean accuracy and gradient norm as a tensor [3].

        Where one of them is not finite, everything is left as it was.
        """
        self.context.update = self.update
        self.context.progress = self.update / self.config.updates
        with self.clock.phase("tasks"):
            batch = self.strategy.next_batch(self.context)
            self._prefetch()
        with self.clock.phase("update"):
            outcome, values = self._train_on(batch)
        self.strategy.observe(outcome)
        self.streak.remember(batch.pool, outcome.losses)
        self.update += 1
        self.tasks_trained += len(batch.pool)
        per_task = batch.pool.support.shape[1] + batch.pool.query.shape[1]
        self.window.images += len(batch.pool) * per_task
        return values

    def _train_on(self, batch: MetaBatch) -> tuple[Outcome, torch.Tensor]:
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(self.learning_rate())
            else:
                group["lr"] = self.learning_rate()

        def weigh(losses: torch.Tensor) -> torch.Tensor | None:
            return self.strategy.weigh(batch, usable_losses(losses))

        if self.captures and len(batch.pool) == self.config.meta_batch and self.optimiser.state:
            if self._captured is None:
                self._captured = CapturedUpdate(
                    self.learner, self.images, self.optimiser, self.guard.keep, self._finish,
                    batch.pool,
                )  # fmt: skip
            if self._captured.fits(batch.pool):
                return self._captured.run(batch.pool, weigh)
        self.guard.keep()
        self.optimiser.zero_grad(set_to_none=True)
        outcome = outer_gradient(self.learner, self.images, batch.pool, weigh, self.group)
        return outcome, self._finish(outcome.losses, outcome.accuracies)

    def _finish(self, losses: torch.Tensor, accuracies: torch.Tensor) -> torch.Tensor:
        """The optimiser's step, if all is finite; mean loss and accuracy and gradient norm [3]."""
        limit = self.config.optimiser.clip or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.learner.parameters(), limit)
        values = torch.stack((losses.mean(), accuracies.mean(), norm.detach()))
        self.guard.step(values.isfinite().all())
        return values

    def evaluate(self, split: str, shot: int | None = None) -> Evaluation:
        """Accuracy on the fixed tasks of a split."""
        with self.clock.phase("evaluation"):
            images = place_table(self.split(split), self.device, self.config.hardware)
            pool = evaluation_tasks(self.config, images, shot)
            mine = evaluate(self.learner, images, pool[self.group.part(len(pool))])
            if self.group.alone:
                return mine
            accuracies = torch.tensor(mine.accuracies, dtype=torch.float64)
            everyone = self.group.gather(accuracies, len(pool)).tolist()
            return Evaluation(tuple(everyone), mine.split)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on."""
        return {
            "update": self.update,
            "tasks_trained": self.tasks_trained,
            "learner": self.learner.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "strategy": self.strategy.state_dict(),
            "random": torch.get_rng_state(),
            "device_random": (
                torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
            ),
            "seconds": dict(self.clock.seconds),
            "window": self.window.state_dict(),
            "skipped": self.streak.skipped,
            "skipped_in_a_row": self.streak.in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict`'s value."""
        self._captured = None  # it knows the old optimiser's memory
        self.learner.load_state_dict(state["learner"])
        # how the optimiser works is this device's affair, not that of the one that wrote the state:
        # a graph would keep a learning rate that came from a file, on the CPU, for ever
        own = [
            {name: group[name] for name in ("lr", "fused", "capturable")}
            for group in self.optimiser.param_groups
        ]
        self.optimiser.load_state_dict(state["optimiser"])
        for group, settings in zip(self.optimiser.param_groups, own, strict=True):
            group.update(settings)
        self.strategy.load_state_dict(state["strategy"])
        torch.set_rng_state(state["random"])
        if self.group.rank:  # the state is that of the first process
            torch.manual_seed(self.config.seed + self.group.rank + state["update"])
        self.update, self.tasks_trained = state["update"], state["tasks_trained"]
        self.clock.seconds = dict(state["seconds"])
        if "window" not in state:  # written by an older version, between two events
            return
        if state["device_random"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["device_random"], self.device)
        self.window = Window.from_state(state["window"], self.device)
        self.streak.skipped = state["skipped"]
        self.streak.in_a_row = state["skipped_in_a_row"]

    def _prefetch(self) -> None:
        """Let images that are streamed be fetched for the next update while this one computes."""
        if not isinstance(self.images, StreamedTable) or self.update + 1 == self.config.updates:
            return
        following = self.strategy.ahead(self.context)
        if following is not None:
            mine = following[self.group.part(len(following))]
            self.images.prefetch(torch.cat((mine.support, mine.query), 1))

    def _must_stop(self, stopping: Callable[[], bool]) -> bool:
        """Several processes stop at the same update, and ask each other only now and then."""
        if self.group.alone:
            return stopping()
        return self.update % IN_A_ROW == 0 and self.group.any(stopping())

    def _look(self) -> None:
        """Record the updates that were skipped; end training after too many in a row."""
        first = self.update - len(self.window.values) + self.window.looked + 1
        for number, finite in enumerate(self.window.look(), first):
            if not finite:
                self.log({"event": "skipped", "update": number, "cause": "not finite"})
            if self.streak.count(finite):
                tasks = self.streak.tasks(self.update - number)
                raise bad_numbers(self.config, self.learner, self.images, number, tasks)

    def _log_window(self) -> str:
        self.clock.settle("update")
        window, self.window = self.window, Window(dict(self.clock.seconds))
        event = window.event(self.clock.seconds)
        self.log(
            {
                "event": "update",
                "update": self.update,
                "lr": self.learning_rate(),
                "skipped": self.streak.skipped,
                **event,
            }
        )
        if "loss" not in event:
            return "skipped: loss or gradient not finite"
        note = f"loss {event['loss']:.3f} accuracy {event['accuracy']:.1f}%"
        share = self._selection_share()
        return f"{note} selection {100 * share:.0f}%" if share else note

    def _selection_share(self) -> float:
        """Share of the training time that went into choosing tasks."""
        seconds = self.clock.seconds
        whole = sum(seconds.get(name, 0.0) for name in TRAINING_PHASES)
        return sum(seconds.get(name, 0.0) for name in SELECTION_PHASES) / max(whole, 1e-9)


def evaluation_tasks(config: TrainConfig, images: ImageTable, shot: int | None = None) -> TaskPool:
    """The fixed, clean tasks on which runs of a comparison are all measured."""
    settings = config.evaluation
    return TaskPool.sample(
        images,
        tasks=settings.tasks,
        way=config.tasks.way,
        shot=config.tasks.shot if shot is None else shot,
        query=settings.query,
        seed=(settings.seed, "evaluation"),
    )


def training_classes(tasks: TaskConfig) -> tuple[str, ...] | None:
    """The classes that training is restricted to, if any."""
    if tasks.class_budget:
        from derts.reproduce.paper import class_list

        return class_list(tasks.class_budget)
    return tasks.classes or None
