"""Which weights a run is judged by: its last ones, or those that validation classes liked best.

Wrong labels of the data set are overfitted where images are few: accuracy rises, and falls again
while training goes on. So where `derts` leaves out images whose label looks wrong, the run is
evaluated on validation classes a few times, and keeps earlier weights if these were better than the
last ones by more than the interval of one evaluation (`--evaluation.weights automatic`).
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
STATE = "update", "accuracy", "weights", "counts"


class KeptWeights:
    """The best weights so far, if they are looked for.

    best    their update, their accuracy on validation tasks, themselves, and whether they count: by
            `best` always, by an automatic choice if the end of training shows that they should
    points  updates after which an automatic choice evaluates them, on so many `tasks`
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, config = trainer, trainer.config
        self.best: dict[str, Any] | None = None
        self.how = config.evaluation.weights
        self.points: set[int] = set()
        self.tasks = 0
        looks = trainer.looks
        if self.how != "automatic" or looks is None or "val" not in trainer.tables:
            return
        try:
            evaluation_tasks(config, trainer.tables["val"])
        except DertsError:  # too few classes or images for a task: the last weights count
            return
        point, self.points = float(max(1, looks.first)), {config.updates}
        while point < config.updates:
            self.points.add(round(point))
            point *= APART
        shot = config.tasks.shot
        trained, tested = shot + config.tasks.query, shot + config.evaluation.query
        afforded = SHARE * config.updates * config.meta_batch * trained / (FORWARD * tested)
        self.tasks = max(FEWEST, round(afforded / len(self.points)))

    @property
    def kept(self) -> dict[str, Any] | None:
        """The weights that count; None: the last ones."""
        return self.best if self.best is not None and self.best["counts"] else None

    def _points_to_now(self) -> bool:
        """Whether an automatic choice evaluates the weights of this update."""
        looks = self.trainer.looks
        wrong = looks is not None and (looks.changed or self.best is not None)
        return wrong and self.trainer.update in self.points

    def _asked(self) -> bool:
        config, update = self.trainer.config, self.trainer.update
        at_end = self.how == "best" and update == config.updates
        return config.validate_every > 0 and (update % config.validate_every == 0 or at_end)

    def validation_is_due(self) -> bool:
        return self._asked() or self._points_to_now()

    def validate(self) -> Evaluation:
        """Accuracy on validation classes; keeps the best weights since the warm-up, if asked."""
        trainer = self.trainer
        found = trainer.evaluate("val", most=None if self._asked() else self.tasks or None)
        if self._points_to_now():
            self._choose(Evaluation(found.accuracies[: self.tasks], found.split))
        elif self.how == "best":
            at_end = trainer.update == trainer.config.updates
            begun = trainer.update > trainer.config.strategy.warmup or at_end
            if begun and (self.best is None or found.mean > self.best["accuracy"]):
                self._keep(found, counts=True)
        return found

    def _keep(self, found: Evaluation, *, counts: bool) -> None:
        values = self.trainer.update, found.mean, weights_of(self.trainer.learner), counts
        self.best = dict(zip(STATE, values, strict=True))

    def _choose(self, found: Evaluation) -> None:
        """Keep the best weights so far; at the end of training, say whether they count."""
        trainer = self.trainer
        if self.best is None or found.mean > self.best["accuracy"]:
            self._keep(found, counts=False)
        assert self.best is not None
        at_end = trainer.update == trainer.config.updates
        lost = self.best["accuracy"] - found.mean
        self.best["counts"] = at_end and lost > found.interval
        if self.best["counts"]:
            text = f"training for {trainer.update} updates overfitted wrong labels: the weights of "
            text += f"update {self.best['update']} are kept ({self.best['accuracy']:.1f}% on "
            text += f"validation classes, {found.mean:.1f}% at the end)"
            trainer.log({"event": "note", "update": trainer.update, "text": text})

    def evaluate(self, split: str) -> Evaluation:
        """Accuracy on a split of the best weights, or of the last ones."""
        trainer, kept = self.trainer, self.kept
        if kept is None:
            return trainer.evaluate(split)
        own = weights_of(trainer.learner)
        trainer.learner.load_state_dict(kept["weights"])
        try:
            return trainer.evaluate(split)
        finally:
            trainer.learner.load_state_dict(own)

    def load_state_dict(self, best: dict[str, Any] | None) -> None:
        self.best = None if best is None else {name: best[name] for name in STATE}
