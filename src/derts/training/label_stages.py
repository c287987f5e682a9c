"""Wrong labels of the data set, found and left out while training (`--strategy.judge`).

Features that saw none of these labels (pretrained, or the data itself) judge all of them before
the first update. Where there are none, the learner judges. One that was trained on wrong labels
believes them; so it is shown one half of every class, and judges the other half:

    first half    trained on as given for 5 to 10% of the run, until its embedding tells the classes
                  of the other half no better; then the labels of the other half are judged
    few look wrong: training goes on with all images, and nothing is lost
    most of all labels, or half of the wrong ones would stay: such an embedding cannot judge, so
                  the same, with a note
    many look wrong: the learner starts again, with a new learning-rate schedule:
    second half   trained on without its wrong labels, as long; then the first half is judged
    all           training goes on with what can be trusted of both halves
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from derts.config import TrainConfig
from derts.errors import DertsError
from derts.labels.judged import item_features, judge
from derts.models.pretrained import AT_ONCE, INSTALL, LITE0, Pretrained, load_pretrained
from derts.progress import Progress
from derts.tasks.randomness import generator
from derts.training.drawing import TaskDrawer

if TYPE_CHECKING:
    from derts.training.trainer import Trainer

SHARE = 10  # the first half takes at most one in so many updates …
LOOKS = 10  # … and is looked at so many times meanwhile
FEWEST_UPDATES = 200  # of a run: a tenth of fewer teaches nothing
BETTER = 1.02  # by which held-out accuracy must grow between two looks to go on
MANY_WRONG = 0.15  # a weak embedding takes so many right labels for wrong
MOST_WRONG = 0.7  # a useless one so many
WORTH = 0.5  # of the wrong labels, at most, may be left for a new start to win more than it costs
SEEN_AT_A_LOOK = 30  # images per class

Stage = Literal["first half", "second half", "all"]
HALVES, FEATURES = "halves", "features"  # --strategy.judge


def label_obstacle(config: TrainConfig, drawer: TaskDrawer) -> str:
    """Why labels cannot be judged in a run; empty where they can."""
    if config.tasks.noise != "none":
        return "tasks are labelled anew, which votes judge and an embedding does not"
    if config.strategy.judge != HALVES:
        return ""
    if config.updates < FEWEST_UPDATES:
        return f"{config.updates} updates teach too little: train for {FEWEST_UPDATES} or more"
    fewest = config.tasks.shot + config.tasks.query
    large = sum(len(group) >= 2 * fewest for _, group in drawer.groups())
    if large < config.tasks.way:
        return (
            f"{large} classes have {2 * fewest} images, two halves that a task can be drawn from, "
            f"and a task has {config.tasks.way}: use derts inspect and derts clean, or lower "
            "--tasks.query"
        )
    return ""


class LabelStages:
    """Which images a run trains on, and by which labels.

    labels  int64 [n]: the class that an image is trained as, −1: left out
    began   the update at which the present learner began
    wrong   share of the labels judged last that look wrong; wrong_after: of those kept
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.judge = trainer.config.strategy.judge
        self.network = _network(self.judge, trainer)
        tasks, images = trainer.config.tasks, trainer.images
        self.fewest = tasks.shot + tasks.query
        self.given = torch.full((len(images),), -1)
        self.second = torch.zeros(len(images), dtype=torch.bool)
        random = generator((trainer.config.seed, "halves"))
        for number, group in trainer.drawer.groups():
            self.given[group] = number
            if self.judge != HALVES:
                continue
            order = torch.randperm(len(group), generator=random)
            # a class that is too small to be halved is judged as a whole, before it is trained on
            small = len(group) < 2 * self.fewest
            self.second[group if small else group[order[::2]]] = True
        self.stage: Stage = "first half"
        self.began = self.length = 0
        self.wrong = self.wrong_after = 0.0
        self.accuracies: list[float] = []
        self.labels = self.given.masked_fill(self.second, -1)
        trainer.drawer.use(self.labels)

    def before(self, progress: Progress) -> None:
        """What is due before the first update: nothing, or all labels are judged."""
        if self.judge == HALVES or self.stage == "all":
            return
        places, trainer = (self.given >= 0).nonzero().squeeze(1), self.trainer
        rows = []
        with progress("judging labels", len(places), trainer.images.noun + "s") as advance:
            for part in places.split(AT_ONCE):
                items = trainer.images.gather(part).to(trainer.device)
                rows.append((items if self.network is None else self.network.embed(items)).cpu())
                advance(len(part))
        self.wrong, self.stage = self._trust(places, torch.cat(rows).float()), "all"
        if self.wrong > MOST_WRONG:
            self.labels = self.given.clone()
        self.network = None
        self._use(0)

    def after(self, update: int) -> None:
        """What is due after an update: nothing, a look, or the end of a stage."""
        most = self.trainer.config.updates // SHARE
        if self.stage == "first half" and update % max(1, most // LOOKS) == 0:
            self.accuracies.append(self._held_out_accuracy())
            grows = self.accuracies[-1] > BETTER * self.accuracies[max(0, len(self.accuracies) - 3)]
            if update >= most or (update >= most // 2 and not grows):
                self._end_first(update)
        elif self.stage == "second half" and update == self.began + self.length:
            self.wrong = self._judge(~self.second)
            self.stage = "all"
            self._use(update)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        kept = {"stage": self.stage, "began": self.began, "length": self.length}
        return {**kept, "accuracies": list(self.accuracies), "labels": self.labels}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        if len(state["labels"]) != len(self.labels):
            raise ValueError(f"it judged {len(state['labels'])} images of {len(self.labels)}")
        self.stage, self.labels = state["stage"], state["labels"]
        self.began, self.length = state["began"], state["length"]
        self.accuracies = list(state["accuracies"])
        self.trainer.drawer.use(self.labels)

    def _end_first(self, update: int) -> None:
        self.wrong = self._judge(self.second)
        useless = self.wrong > MOST_WRONG or self.wrong_after > WORTH * self.wrong
        if useless or self.wrong < MANY_WRONG:
            self.stage, self.labels = "all", self.given.clone()
            self._use(update)
            return
        self.labels.masked_fill_(~self.second, -1)
        self.stage, self.began, self.length = "second half", update, update
        self.trainer.start_again()
        self._use(update, restarted=True)

    def _use(self, update: int, restarted: bool = False) -> None:
        """Train on the labels as they are now."""
        trainer, mine = self.trainer, self.labels >= 0
        trainer.drawer.use(self.labels)
        trainer.restart_strategy()
        left_out = int((~mine & (self.given >= 0)).sum()) if self.stage == "all" else 0
        relabelled = int((mine & (self.labels != self.given)).sum())
        about: dict[str, Any] = {"looks_wrong": round(self.wrong, 4)}
        about |= {"left_out": left_out, "relabelled": relabelled, "restarted": restarted}
        trainer.log({"event": "labels", "update": update, "stage": self.stage, **about})
        if self.stage == "all" and (left_out or relabelled):
            text = (
                f"{100 * self.wrong:.0f}% of the training labels look wrong (derts inspect shows "
                f"them): {left_out:,} {trainer.images.noun}s left out, {relabelled:,} relabelled; "
                + (f"the learner began again at update {self.began}" if self.began else self.judge)
            )
            trainer.log({"event": "note", "update": update, "text": text})
        elif self.stage == "all" and self.wrong >= MANY_WRONG:
            text = (
                f"{100 * self.wrong:.0f}% of the training labels look wrong, but this judge "
                f"cannot tell which: all are trained on; for photos try --strategy.judge {LITE0}"
            )
            trainer.log({"event": "note", "update": update, "text": text})

    def _judge(self, half: Tensor) -> float:
        """Set the labels of a half to those that can be trusted; the share that looks wrong."""
        trainer = self.trainer
        places = (half & (self.given >= 0)).nonzero().squeeze(1)
        with trainer.clock.phase("labels"):
            features = item_features(trainer.learner, trainer.images, indices=places)
        return self._trust(places, features)

    def _trust(self, places: Tensor, features: Tensor) -> float:
        """The same for the images at some places, by their features."""
        trainer = self.trainer
        with trainer.clock.phase("labels"):
            numbers, labels = self.given[places].unique(return_inverse=True)
            names = [trainer.images.class_names[number] for number in numbers.tolist()]
            trust = judge(features, labels, names, trainer.learner.device)
            kept = trust.kept(self.fewest)
            self.wrong_after = trainer.group.same(trust.wrong_after(kept))
            found = torch.where(kept < 0, -1, numbers[kept.clamp(min=0)])
            self.labels[places] = trainer.group.same(found)
            return trainer.group.same(trust.share_wrong)

    def _held_out_accuracy(self) -> float:
        """How often the nearest class mean of the half not trained on is that of the label."""
        trainer = self.trainer
        with trainer.clock.phase("labels"):
            places = torch.cat([
                group[self.second[group]][:SEEN_AT_A_LOOK] for _, group in trainer.drawer.groups()
            ])  # fmt: skip
            rows = item_features(trainer.learner, trainer.images, indices=places)
            numbers, labels = self.given[places].unique(return_inverse=True)
            sums = torch.zeros(len(numbers), rows.shape[1]).index_add_(0, labels, rows)
            counts = labels.bincount()
            distances = torch.cdist(rows, sums / counts[:, None])
            # left out of its own mean, an image lies further away from it
            further = counts[labels] / (counts[labels] - 1)
            distances[torch.arange(len(rows)), labels] *= further
            right = (distances.argmin(1) == labels).float().mean()
            return trainer.group.same(float(right))


def _network(judge: str, trainer: Trainer) -> Pretrained | None:
    """The pretrained network that judges; None where the items or the learner do."""
    are_features = len(trainer.images.item_shape) == 1
    if judge == HALVES or (are_features and judge in (FEATURES, trainer.config.model.backbone)):
        return None
    if judge == FEATURES:
        raise DertsError(
            "--strategy.judge features is for features, and this data is images: choose halves, or "
            f"{LITE0} ({INSTALL})"
        )
    if are_features:
        raise DertsError(
            f"--strategy.judge {judge} takes images, and this data is features: "
            "choose features or halves"
        )
    return load_pretrained(judge)
