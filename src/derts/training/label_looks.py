"""Wrong labels of the data set, found and left out while training (`--strategy.judge`).

The learner judges the labels that it is trained on. At each look its embedding says how far every
label can be trusted (`labels.prototypes.label_trust`), and tasks are drawn from those that can be
until the next look; with ProtoNet an image counts by its trust. What was left out is judged again,
and may come back. Every class keeps enough images for a task.

Features that saw none of these labels (pretrained, or the data itself) judge once, before the first
update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from derts.config import TrainConfig
from derts.errors import DertsError
from derts.labels.judging import directions, item_features, judge
from derts.labels.trust import Trust
from derts.models.pretrained import INSTALL, LITE0, Pretrained, load_pretrained, may_be_photos
from derts.progress import Progress

if TYPE_CHECKING:
    from derts.training.trainer import Trainer

LOOKS = 0.05, 0.15, 0.3, 0.5  # of the updates of a run, after which the learner judges …
SEEN = 15  # … and sooner where an image is seen so often by then: wrong labels are overfitted soon
SOONEST = 30  # updates that teach a learner enough to judge
FEWEST_UPDATES = 200  # of a run whose learner can judge
MANY_WRONG = 0.07  # a learner's embedding takes so many right labels for wrong, but in no pairs
MOST_WRONG = 0.7  # a useless one so many
SURE = 0.8  # probability with which a suggestion of features is trained on …
PROBABLE = 0.5  # probability with which a label is trusted enough to train on the image …
LEAST = 0.35  # … where it counts by this probability …
LOWEST = 0.05  # … but by no less than this, where a class lacks others
NEVER = 2.0  # … while half of a learner's surest suggestions are wrong: it only leaves out
STATE = "done", "wrong", "labels", "trust", "updates"
LEARNER, FEATURES = "learner", "features"  # --strategy.judge
AT_ONCE = 32  # items that are fetched to be embedded


def look_updates(config: TrainConfig, images: int) -> list[int]:
    """After how many updates a learner judges the labels of so many images.

    >>> config = TrainConfig(updates=2000)
    >>> look_updates(config, 38_400), look_updates(config, 3_840)
    ([100, 300, 600, 1000], [30, 60, 100, 300, 600, 1000])
    """
    found = [round(share * config.updates) for share in LOOKS]
    tasks = config.tasks
    per_update = config.meta_batch * tasks.way * (tasks.shot + tasks.query)
    sooner, early = max(SOONEST, round(SEEN * images / per_update)), []
    while sooner < found[0]:
        early.append(sooner)
        sooner *= 2
    return early + found


def label_obstacle(config: TrainConfig) -> str:
    """Why labels cannot be judged in a run; empty where they can."""
    if config.tasks.noise_kind != "none":
        return "tasks are labelled anew, which votes judge and an embedding does not"
    if config.strategy.judge == LEARNER and config.updates < FEWEST_UPDATES:
        return f"{config.updates} updates teach too little: train for {FEWEST_UPDATES} or more"
    return ""


class LabelLooks:
    """Which images a run trains on, and by which labels.

    updates  after which the labels are judged; `first`: of them, were the learner the judge
    labels  int64 [n]: the class that an image is trained as, −1: left out
    done    how many looks there were
    wrong   share of the labels that looked wrong at the last one
    trust   float32 [n]: by how much each image counts (None: all alike)
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        config = trainer.config
        self.judge = config.strategy.judge
        self.network = _network(self.judge, trainer)
        self.fewest = config.tasks.shot + config.tasks.query
        labels, used = trainer.images.labels, trainer.images.class_numbers(trainer.drawer.classes)
        self.given = torch.where(torch.isin(labels, used), labels, -1)
        self.labels = self.given.clone()
        by_learner = look_updates(config, int((self.given >= 0).sum()))
        self.updates, self.first = by_learner if self.judge == LEARNER else [0], by_learner[0]
        self.done, self.wrong = 0, 0.0
        self.trust: torch.Tensor | None = None

    def look(self, update: int, progress: Progress) -> None:
        """Judge all labels, if a look is due after so many updates."""
        if self.done == len(self.updates) or update < self.updates[self.done]:
            return
        trainer = self.trainer
        with trainer.clock.phase("labels"):
            places = (self.given >= 0).nonzero().squeeze(1)
            numbers, labels = self.given[places].unique(return_inverse=True)
            names = [trainer.images.class_names[number] for number in numbers.tolist()]
            rows = self._features(places, progress)
            trust = judge(rows, labels, names, trainer.learner.device)
            self.wrong, confused = trainer.group.same((trust.share_wrong, trust.confused))
            acted = self.changed  # by now the learner may have overfitted what it was left with
            self.labels, self.trust = self.given.clone(), None
            by_learner = self.judge == LEARNER
            by_trust = by_learner and trainer.learner.by_trust
            least = LEAST if by_trust else PROBABLE
            many = MANY_WRONG if by_learner and not (confused or acted) else 0.0
            if many <= self.wrong <= MOST_WRONG:
                kept = trust.kept(self.fewest, NEVER if by_learner else SURE, least)
                kept, known = trainer.group.same((kept, trust.probability))
                self.labels[places] = torch.where(kept < 0, -1, numbers[kept.clamp(min=0)])
                if by_trust:
                    self.trust = torch.ones(len(self.labels))
                    self.trust[places] = known.clamp(min=LOWEST)
        self.done += 1
        trainer.drawer.use_labels(self.labels, self.trust)
        trainer.strategy.labels_changed()
        self._tell(update, trust)

    @property
    def changed(self) -> bool:
        """Whether training goes by other labels than the given ones."""
        return not torch.equal(self.labels, self.given)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        judged = [state[name] for name in ("labels", "trust") if state[name] is not None]
        if any(len(values) != len(self.labels) for values in judged):
            raise ValueError(f"it judged {len(state['labels'])} images of {len(self.labels)}")
        if not (isinstance(state["updates"], list) and 0 <= state["done"] <= len(state["updates"])):
            raise ValueError("its looks at labels are impossible")
        for name in STATE:
            setattr(self, name, state[name])
        self.trainer.drawer.use_labels(self.labels, self.trust)

    def _features(self, places: torch.Tensor, progress: Progress) -> torch.Tensor:
        """Features [n, d] of the images at some places, by whoever judges."""
        trainer = self.trainer
        if self.judge == LEARNER:
            return directions(item_features(trainer.learner, trainer.images, indices=places))
        found = []
        with progress("judging labels", len(places), trainer.images.noun + "s") as advance:
            for part in places.split(AT_ONCE):
                items = trainer.images.gather(part).to(trainer.device)
                found.append((items if self.network is None else self.network.embed(items)).cpu())
                advance(len(part))
        self.network = None  # it judges once
        return torch.cat(found).float()

    def _tell(self, update: int, trust: Trust) -> None:
        """Log what a look found; the last one leaves a note where labels look wrong, or may be."""
        noun = self.trainer.images.noun
        left_out = int(((self.labels < 0) & (self.given >= 0)).sum())
        relabelled = int(((self.labels >= 0) & (self.labels != self.given)).sum())
        about = {"event": "labels", "update": update, "look": self.done}
        found = {"left_out": left_out, "relabelled": relabelled}
        self.trainer.log({**about, "looks_wrong": round(self.wrong, 4), **found})
        if self.done < len(self.updates):
            return
        looks_wrong = f"{100 * self.wrong:.0f}% of the training labels look wrong"
        if left_out or relabelled:
            changed = f", {relabelled:,} relabelled" if relabelled else ""
            text = f"{looks_wrong} (derts inspect shows them): {left_out:,} {noun}s left out"
            text += changed + (", the others count by trust" if self.trust is not None else "")
            kept = self.trainer.weights
            if kept.how == "automatic" and not kept.points:
                text += "; too few validation classes to tell when training overfits others"
        elif self.wrong >= MANY_WRONG:
            text = f"{looks_wrong}, but this judge cannot tell which: all are trained on"
        elif trust.weak:
            seen = f"{100 * trust.sees:.0f}% of randomly wrong labels"
            text = f"no {noun} was left out, but this judge would find only about {seen}"
        elif may_be_photos(self.trainer.images.item_shape) and self.judge != LITE0:
            text = f"no {noun} was left out: this judge found no wrong label, and may miss some"
        else:
            return
        if may_be_photos(self.trainer.images.item_shape) and self.judge != LITE0:
            text += f"; for photos --strategy.judge {LITE0} finds more"
        self.trainer.log({"event": "note", "update": update, "text": text})


def _network(judge: str, trainer: Trainer) -> Pretrained | None:
    """The pretrained network that judges; None where the items or the learner do."""
    of_features = trainer.images.of_features
    if judge == LEARNER or (of_features and judge in (FEATURES, trainer.config.model.backbone)):
        return None
    if of_features:
        wrong = f"--strategy.judge {judge} takes images, and this data is features"
        raise DertsError(f"{wrong}: choose features or learner")
    if judge == FEATURES:
        wrong = "--strategy.judge features is for features, and this data is images"
        raise DertsError(f"{wrong}: choose learner, or {LITE0} ({INSTALL})")
    return load_pretrained(judge)
