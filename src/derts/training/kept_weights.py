"""Which weights a run is judged by: its last ones, or those that validation classes liked best.

Wrong labels of the data set are overfitted where images are few: accuracy rises, and falls again
while training goes on. So where `derts` leaves out images whose label looks wrong, the run is
evaluated on validation classes a few times, and ends with earlier weights if these were better than
the last ones by more than chance: early stopping (`--evaluation.weights automatic`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from derts.errors import DertsError
from derts.evaluation import Evaluation
from derts.training.checkpoint import weights_of
from derts.training.task_drawer import evaluation_tasks

if TYPE_CHECKING:
    from derts.training.trainer import Trainer

APART = 2.0  # each evaluation of an automatic choice comes after so many times the updates before
SHARE = 0.05  # of a run's time that they may take, about, all together …
FORWARD = 1 / 3  # … an image being embedded in so much of the time that training on it takes
FEWEST = 20  # validation tasks
STATE = "update", "accuracy", "weights"


class KeptWeights:
    """The best weights so far, if they are looked for.

    best    their update, their accuracy on validation tasks, and themselves (None: the last count)
    points  updates after which an automatic choice evaluates them, on so many `tasks`
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, config = trainer, trainer.config
        self.best: dict[str, Any] | None = None
        self.how = config.evaluation.weights
        self.points: set[int] = set()
        looks = trainer.looks
        if self.how != "automatic" or looks is None or "val" not in trainer.tables:
            return
        try:
            evaluation_tasks(config, trainer.tables["val"])
        except DertsError:  # too few classes or images for a task: the last weights count
            return
        point, self.points = float(looks.first), {config.updates}
        while point < config.updates:
            self.points.add(round(point))
            point *= APART
        trained, tested = (
            config.tasks.shot + config.tasks.query,
            config.tasks.shot + config.evaluation.query,
        )
        afforded = SHARE * config.updates * config.meta_batch * trained / (FORWARD * tested)
        self.tasks = max(FEWEST, round(afforded / len(self.points)))

    @property
    def wanted(self) -> bool:
        """Whether the best weights are looked for."""
        looks = self.trainer.looks
        wrong = looks is not None and (looks.changed or self.best is not None)
        return self.how == "best" or (bool(self.points) and wrong)

    def _asked(self) -> bool:
        config, update = self.trainer.config, self.trainer.update
        at_end = self.how == "best" and update == config.updates
        return config.validate_every > 0 and (update % config.validate_every == 0 or at_end)

    def validation_is_due(self) -> bool:
        return self._asked() or (self.wanted and self.trainer.update in self.points)

    def validate(self) -> Evaluation:
        """Accuracy on validation classes; keeps the best weights since the warm-up, if asked."""
        trainer = self.trainer
        found = trainer.evaluate("val", most=None if self._asked() else self.tasks)
        at_end = trainer.update == trainer.config.updates
        begun = bool(self.points) or trainer.update > trainer.config.strategy.warmup or at_end
        better = self.best is None or found.mean > self.best["accuracy"]
        if self.wanted and begun and better:
            values = trainer.update, found.mean, weights_of(trainer.learner)
            self.best = dict(zip(STATE, values, strict=True))
        if self.points and at_end and self.best is not None:
            self._stop_early(self.best, found)
        return found

    def _stop_early(self, best: dict[str, Any], last: Evaluation) -> None:
        """Keep earlier weights where the last ones are worse by more than chance, and say so."""
        if best["accuracy"] - last.mean <= last.interval:
            self.best = None
            return
        text = f"training overfitted wrong labels: the weights of update {best['update']} are kept"
        reached = f"{best['accuracy']:.1f}% on validation classes, {last.mean:.1f}% at the end"
        event = {"event": "note", "update": self.trainer.update, "text": f"{text} ({reached})"}
        self.trainer.log(event)

    def evaluate(self, split: str) -> Evaluation:
        """Accuracy on a split of the best weights, or of the last ones."""
        trainer = self.trainer
        if self.best is None:
            return trainer.evaluate(split)
        own = weights_of(trainer.learner)
        trainer.learner.load_state_dict(self.best["weights"])
        try:
            return trainer.evaluate(split)
        finally:
            trainer.learner.load_state_dict(own)

    def load_state_dict(self, best: dict[str, Any] | None) -> None:
        self.best = None if best is None else {name: best[name] for name in STATE}
