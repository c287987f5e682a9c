"""The trainer: one learner, one strategy, updates, evaluation and all their state."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from derts.clock import Clock, share_of_selection
from derts.config import LearnerConfig, ModelConfig, TrainConfig
from derts.data.streaming import StreamedTable, place_table
from derts.data.table import Table
from derts.distributed import Group
from derts.errors import DertsError
from derts.evaluation import Evaluation, evaluate, gain_note
from derts.hardware import choose_device
from derts.learners import AnyLearner, build_learner
from derts.models import FeatureBackbone, FineTuned
from derts.progress import Advance, Progress, silent, unheard
from derts.selection import build_strategy
from derts.selection.strategy import Context
from derts.training.bad_numbers import UpdateWindow, usable_losses
from derts.training.kept_weights import KeptWeights
from derts.training.label_looks import LabelLooks, label_obstacle
from derts.training.result import acting
from derts.training.run_folder import Listen
from derts.training.step import Updater, place_learner
from derts.training.task_drawer import TaskDrawer, evaluation_tasks, training_images

LOG_EVERY = 10  # updates: one event tells of them
Tables = Mapping[str, Table]


class Trainer:
    """Trains one learner on one table; `state_dict` holds all that is needed to go on.

    `weights` says which it is judged by; `split(name)` is a part of the data, embedded where the
    backbone is frozen. Each meta-batch is computed in so many `pieces`, with the same gradients.

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
        tables: Tables,
        log: Listen = lambda event: None,
        group: Group | None = None,
        progress: Progress = silent,
        pieces: int = 1,
    ) -> None:
        self.config = config = config.resolved()
        self.group, self.tables, self.log = group or Group(), tables, log
        self.device = self.group.device or choose_device(config.hardware.device)
        self._progress = progress

        # a split: as it is (_raw), embedded where a backbone is frozen (split), placed
        self.split = cache(lambda name: self._embedded(self._raw(name)))
        limit = config.hardware.memory_gib
        self._placed = cache(lambda name: place_table(self.split(name), self.device, limit))
        self._test_tasks = cache(lambda name: evaluation_tasks(self.config, self._placed(name)))

        # the learner, and the tasks it trains on
        images = training_images(self._raw("train"), config.tasks)
        way, self.item_shape = config.tasks.way, images.item_shape
        self.learner = build_learner(
            config.learner, config.model, way=way, item_shape=self.item_shape, seed=config.seed
        )
        self.drawer = TaskDrawer(config, images)
        self.draw = self.drawer.draw
        self.draw(1, "check", 0)  # impossible tasks are refused before anything takes long
        if (used := self.learner.embedding.pretrained) is not None:
            used.check_images(self.item_shape)
        images = self._embedded(images)
        self.images = place_table(images, self.device, limit)
        if isinstance(self.learner.backbone, FeatureBackbone | FineTuned):
            self.learner.backbone.fit(images)
        place_learner(self.learner, config.hardware, self.device)
        self.updater = Updater(self.learner, self.images, config, self.group, pieces)
        self.optimiser = self.updater.optimiser

        # who chooses the tasks, and what is counted
        self.strategy = build_strategy(config.strategy)
        self.clock = Clock(self.device)
        self.update = self.tasks_trained = 0
        self.window = UpdateWindow()
        self._acting: list[str] = []
        self.context = Context(
            self.learner, self.images, self.draw, config.meta_batch,
            seed=config.seed, clock=self.clock, log=self._hear, group=self.group,
        )  # fmt: skip
        if validation := tables.get("val"):
            of_ats = config.strategy.name == "ats"
            tasks = replace(config.tasks, noise="none", classes=(), rotated=False)
            self.context.validation_images = self._placed("val") if of_ats else validation
            self.context.draw_validation = TaskDrawer(replace(config, tasks=tasks), validation).draw
        self.looks: LabelLooks | None = None
        self._notes: list[str] = []
        if pieces > 1:
            some = "images" if self.learner.embeds else "tasks"
            text = f"a meta-batch is computed in {pieces} pieces of at most {self.updater.at_once}"
            self._notes.append(f"{text} {some}, to need less memory")
        if config.strategy.name == "derts" and config.strategy.judge != "none":
            if obstacle := label_obstacle(config):
                self._notes.append(f"labels of the data set are not judged: {obstacle}")
            else:
                self.looks = LabelLooks(self)
        self.weights = KeptWeights(self)
        self.strategy.check(self.context)

    def _raw(self, name: str) -> Table:
        if name in self.tables:
            return self.tables[name]
        known = ", ".join(self.tables)
        raise DertsError(f"the data has no split {name!r}, only {known}: prepare one")

    def learning_rate(self) -> float:
        """The learning rate of the next update: it falls to zero by a cosine."""
        falls = 0.5 * (1 + math.cos(math.pi * self.update / self.config.updates))
        return (self.config.optimiser.lr or 0.0) * falls

    def train(
        self,
        until: int | None = None,
        advance: Advance = unheard,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """Train up to an update (default: the last), or until `stopping` says so."""
        until = self.config.updates if until is None else min(until, self.config.updates)
        self.learner.train()
        for text in [] if self.update else self._notes:
            self.log({"event": "note", "update": 0, "text": text})
        if self.looks is not None:
            self.looks.look(self.update, self._progress)
        if not self.window.values:
            self.window.begin(self.clock.seconds)
        told = self.update
        while self.update < until and not self._must_stop(stopping):
            self.window.values.append(self.step())
            if self.looks is not None:
                self.looks.look(self.update, self._progress)
            if self.update % LOG_EVERY == 0 or self.update == until:
                self.clock.settle("update")  # or looking would wait for the GPU, uncounted
                advance(self.update - told, self._log_window())
                told = self.update

    def step(self) -> torch.Tensor:
        """One update; returns its mean loss, mean accuracy and gradient norm as a tensor [3]."""
        self.context.update = self.update
        self.context.progress = self.update / self.config.updates
        with self.clock.phase("tasks"):
            batch = self.strategy.next_batch(self.context)
            self._prefetch()
        with self.clock.phase("update"):
            losses, values = self.updater.run(
                self.drawer.augmented(batch.pool, self.update),
                lambda losses: self.strategy.weigh(batch, usable_losses(losses)),
                self.learning_rate(),
            )
        self.window.remember(batch.pool, losses)
        self.update += 1
        self.tasks_trained += len(batch.pool)
        return values

    def evaluate(
        self, split: str, learner: AnyLearner | None = None, most: int | None = None
    ) -> Evaluation:
        """Accuracy on the fixed tasks of a split, or on the first of them; of another `learner`."""
        with self.clock.phase("evaluation"):
            images, pool = self._placed(split), self._test_tasks(split)[:most]
            mine = evaluate(learner or self.learner, images, pool[self.group.part(len(pool))])
            accuracies = torch.tensor(mine.accuracies, dtype=torch.float64)
            return Evaluation(tuple(self.group.gather(accuracies, len(pool)).tolist()), mine.split)

    def gain(self, trained: Evaluation) -> str:
        """What training gained over class means of the features that it began with, if any."""
        if not isinstance(self.learner.backbone, FeatureBackbone | FineTuned):
            return ""
        own, loaded = self.config.model, self.learner.embedding.pretrained
        plain = (
            replace(own, head="none", fine_tune="none") if own.pretrained else ModelConfig("none")
        )
        means = build_learner(
            LearnerConfig(), plain, way=self.config.tasks.way,
            item_shape=self.images.item_shape, pretrained=loaded,
        )  # fmt: skip
        if isinstance(means.backbone, FeatureBackbone) and self.images.of_features:
            means.backbone.fit(self.images)
        before = self.evaluate(self.config.evaluation.split, means.to(self.device))
        return gain_note(trained, before)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on."""
        return {
            "update": self.update,
            "tasks_trained": self.tasks_trained,
            "learner": self.learner.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "strategy": self.strategy.state_dict(),
            "seconds": dict(self.clock.seconds),
            "best": self.weights.best,
            "looks": self.looks.state_dict() if self.looks else None,
            **self.window.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not 0 <= state["update"] <= self.config.updates:
            raise ValueError(f"it is at update {state['update']} of {self.config.updates}")
        self.learner.load_state_dict(state["learner"])
        self.updater.load_state_dict(state["optimiser"])
        self.strategy.load_state_dict(state["strategy"])
        if self.looks is not None:
            self.looks.load_state_dict(state["looks"])
        self.update, self.tasks_trained = state["update"], state["tasks_trained"]
        self.clock.seconds = dict(state["seconds"])
        self.weights.load_state_dict(state["best"])
        self.window.load_state_dict(state, self.device)

    def _embedded(self, table: Table) -> Table:
        """A table as it is, or its images as features where the backbone is frozen."""
        pretrained = self.learner.embedding.pretrained
        if pretrained is None or table.of_features:
            return table
        with self._progress(f"embedding {table.split}", len(table), "images") as advance:
            return pretrained.embed_table(table, self.device, advance)

    def _hear(self, event: dict[str, Any]) -> None:
        """An event of the strategy: logged, and what acted in a round is shown as progress."""
        if event["event"] == "round":
            self._acting = acting(event)
        self.log(event)

    def _prefetch(self) -> None:
        """Let images that are streamed be fetched for the next update while this one computes."""
        if not isinstance(self.images, StreamedTable) or self.update + 1 >= self.config.updates:
            return
        if (following := self.strategy.ahead(self.context)) is not None:
            mine = following[self.group.part(len(following))]
            self.images.prefetch(torch.cat((mine.support, mine.query), 1))

    def _must_stop(self, stopping: Callable[[], bool]) -> bool:
        """Several processes stop at the same update, and ask each other only now and then."""
        if self.group.alone:
            return stopping()
        return self.update % LOG_EVERY == 0 and self.group.any(stopping())

    def _log_window(self) -> str:
        event = self.window.look(self.config, self.update, self.clock.seconds, self.log)
        about = {"update": self.update, "lr": self.learning_rate(), "skipped": self.window.skipped}
        self.window.begin(self.clock.seconds)
        self.log({"event": "update", **about, **event})
        if "loss" not in event:
            return "skipped: loss or gradient not finite"
        note = f"loss {event['loss']:.3f} accuracy {event['accuracy']:.1f}%"
        if share := share_of_selection(self.clock.seconds):
            note += f" selection {100 * share:.0f}%"
        return f"{note} ({', '.join(self._acting)})" if self._acting else note
