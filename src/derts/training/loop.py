"""Stage 7: the training loop, the same for every learner and strategy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch

from derts.clock import SELECTION_PHASES, TRAINING_PHASES, Clock
from derts.config import TaskConfig, TrainConfig
from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.evaluation import Evaluation, evaluate
from derts.learners import build_learner
from derts.learners.base import Outcome
from derts.progress import Advance
from derts.selection import build_strategy
from derts.selection.strategy import Context, MetaBatch
from derts.tasks import Noise, SwapNoise, TaskNoise, TaskPool, TaskSampler
from derts.training.captured import CapturedUpdate
from derts.training.hardware import choose_device, place_learner, place_table

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
        self, config: TrainConfig, tables: Mapping[str, ImageTable], log: Log = lambda event: None
    ) -> None:
        self.config = config = config.resolved()
        self.device = choose_device(config.hardware)
        self.tables = tables
        self.images = place_table(self.split("train"), self.device)
        self.sampler = TaskSampler(self.images, training_classes(config.tasks))
        self.learner = build_learner(
            config.learner,
            config.model,
            way=config.tasks.way,
            image_shape=self.images.image_shape,
            seed=config.seed,
        )
        place_learner(self.learner, config, self.device)
        self.captures = self.learner.captures_on(self.images)
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
        self._images_per_update = 0
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
        )
        self.draw(1, "check", 0)  # impossible tasks are refused before the first update
        self.strategy.check(self.context)
        if config.model.drop_block:
            torch.manual_seed(config.seed)

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
        settings = self.config.tasks
        return self.sampler.draw(
            tasks=tasks,
            way=settings.way,
            shot=settings.shot,
            query=settings.query,
            seed=(self.config.seed, purpose, number),
            noise=task_noise(settings),
            images=images,
        )

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
        return place_table(found, self.device)

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

        `advance` hears of progress.
        """
        until = self.config.updates if until is None else min(until, self.config.updates)
        self.learner.train()
        window: list[torch.Tensor] = []
        seconds = dict(self.clock.seconds)
        images = 0
        while self.update < until and not stopping():
            window.append(self.step())
            images += self._images_per_update
            at_stop = self.update == until or stopping()
            if self.update % self.config.log_every == 0 or at_stop:
                spent = self._settle(seconds)
                note = self._log_window(window, spent, images)
                advance(len(window), note)
                window, images, seconds = [], 0, dict(self.clock.seconds)

    def step(self) -> torch.Tensor:
        """One update; returns its mean loss, mean accuracy and gradient norm as a tensor [3]."""
        self.context.update = self.update
        self.context.progress = self.update / self.config.updates
        with self.clock.phase("tasks"):
            batch = self.strategy.next_batch(self.context)
        with self.clock.phase("update"):
            outcome, norm = self._train_on(batch)
        self.strategy.observe(outcome)
        self.update += 1
        self.tasks_trained += len(batch.pool)
        per_task = batch.pool.support.shape[1] + batch.pool.query.shape[1]
        self._images_per_update = len(batch.pool) * per_task
        return torch.stack((outcome.losses.mean(), outcome.accuracies.mean(), norm.detach()))

    def _train_on(self, batch: MetaBatch) -> tuple[Outcome, torch.Tensor]:
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(self.learning_rate())
            else:
                group["lr"] = self.learning_rate()

        def weigh(losses: torch.Tensor) -> torch.Tensor | None:
            return self.strategy.weigh(batch, losses)

        if self.captures and len(batch.pool) == self.config.meta_batch and self.optimiser.state:
            if self._captured is None:
                self._captured = CapturedUpdate(
                    self.learner, self.images, self.optimiser, self._finish, batch.pool
                )
            if self._captured.fits(batch.pool):
                return self._captured.run(batch.pool, weigh)
        outcome = self.learner.outer_loss(self.images, batch.pool, weigh)
        self.optimiser.zero_grad(set_to_none=True)
        outcome.loss.backward()
        return outcome, self._finish()

    def _finish(self) -> torch.Tensor:
        """The optimiser's step from the gradients; returns their norm."""
        limit = self.config.optimiser.clip or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.learner.parameters(), limit)
        self.optimiser.step()
        return norm

    def evaluate(self, split: str, shot: int | None = None) -> Evaluation:
        """Accuracy on the fixed tasks of a split."""
        with self.clock.phase("evaluation"):
            images = place_table(self.split(split), self.device)
            pool = evaluation_tasks(self.config, images, shot)
            return evaluate(self.learner, images, pool)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on."""
        return {
            "update": self.update,
            "tasks_trained": self.tasks_trained,
            "learner": self.learner.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "strategy": self.strategy.state_dict(),
            "random": torch.get_rng_state(),
            "seconds": dict(self.clock.seconds),
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
        self.update, self.tasks_trained = state["update"], state["tasks_trained"]
        self.clock.seconds = dict(state["seconds"])

    def _settle(self, before: dict[str, float]) -> dict[str, float]:
        self.clock.settle("update")
        return {
            name: round(total - before.get(name, 0.0), 6)
            for name, total in self.clock.seconds.items()
        }

    def _log_window(self, window: list[torch.Tensor], spent: dict[str, float], images: int) -> str:
        values = torch.stack(window).double().cpu()
        finite = values.isfinite().all(1)
        if not bool(finite.all()):
            bad = self.update - len(window) + int((~finite).nonzero()[0]) + 1
            raise DertsError(
                f"loss or gradient is not finite at update {bad}: lower --optimiser.lr (now "
                f"{self.config.optimiser.lr}) or --learner.inner-lr, or set --optimiser.clip 10"
            )
        loss, accuracy, norm = values.mean(0).tolist()
        self.log(
            {
                "event": "update",
                "update": self.update,
                "loss": round(loss, 6),
                "accuracy": round(100 * accuracy, 4),
                "gradient_norm": round(norm, 6),
                "lr": self.learning_rate(),
                "seconds": {name: value for name, value in spent.items() if value},
                "images_per_second": round(images / max(sum(spent.values()), 1e-9), 1),
            }
        )
        note = f"loss {loss:.3f} accuracy {100 * accuracy:.1f}%"
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
