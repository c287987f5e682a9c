"""Use a trained model: a few labelled images (or rows of features) in, labels for the rest out."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save

from derts.config import TrainConfig
from derts.data import FeatureTable
from derts.data.decode import Images, Pixels, decode_all
from derts.data.folders import folders_in, list_class, photographs, unread_note
from derts.data.matrices import Matrix, rows_for_model
from derts.embed import stored_examples
from derts.errors import DertsError
from derts.files import write_atomically, write_json
from derts.hardware import send
from derts.learners import AnyLearner, build_learner, pretrained_weights
from derts.learners.pool_features import evaluation_mode
from derts.models import FeatureBackbone
from derts.models.pretrained import Pretrained, load_pretrained
from derts.progress import Progress, silent

FORMAT = "derts-model-1"
PRETRAINED = "pretrained."
"""What the names of a frozen backbone's weights begin with, in a file."""
AT_ONCE = 128
AnyImage = Path | str | Image.Image | Pixels
LeftOut = list[tuple[str, str]]
"""Names of images that cannot be read, and why."""
Card = dict[str, Any]
Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Prediction:
    """One item's name, label, the label's probability, and that of every class."""

    name: str
    label: str
    probability: float
    probabilities: dict[str, float]


class FewShotModel:
    """A trained learner with what is needed to use it: config and card (item shape, results).

    Several threads may use one model: they decode at once, and take turns with the learner.
    The card of a pretrained backbone as it is says that it is `untrained`.
    """

    def __init__(
        self,
        config: TrainConfig,
        card: Card,
        weights: Weights,
        pretrained: Pretrained | None = None,
    ) -> None:
        self.config, self.card, self.weights = config, card, weights
        self.pretrained = pretrained
        if pretrained is None and config.model.pretrained:
            tuned = part_of(weights, "backbone.pretrained.network.")
            self.pretrained = load_pretrained(config.model.backbone, tuned or config.model.weights)
        self.shape: tuple[int, ...] = tuple(card["item_shape"])
        self.takes_features = len(self.shape) == 1
        self.size, self.channels = self.shape[0], self.shape[-1]
        if not self.takes_features and self.size != self.shape[1]:
            trained = f"the model was trained on images of {self.size}×{self.shape[1]} pixels"
            raise DertsError(f"{trained}: train on square ones, as derts data prepare makes them")
        self.turn = threading.Lock()
        self.learner = self._build(config.tasks.way)

    def _build(self, way: int) -> AnyLearner:
        learner = build_learner(
            self.config.learner, self.config.model, way=way, item_shape=self.shape,
            pretrained=self.pretrained,
        )  # fmt: skip
        learner.load_state_dict(self.weights)
        return learner

    def adapt(
        self,
        support: Path | str | Mapping[str, Sequence[AnyImage]],
        *,
        left_out: LeftOut | None = None,
    ) -> Classifier:
        """Learn new classes: a folder with a folder per class, a store, or images by class name.

        A model of features takes a file of features with labels, a store of them, or arrays [n, d]
        by class name. For others a store may hold images, or features by the model's pretrained
        backbone. An image that cannot be read is an error, or is put into `left_out`.
        """
        classes: Mapping[str, Any]
        if isinstance(support, Mapping):
            classes = support
        elif (Path(support) / "store.json").is_file():
            backbone = "" if self.takes_features else self.config.model.backbone
            classes = stored_examples(support, backbone)
        elif self.takes_features:
            classes = rows_for_model(support, self.size, labelled=True).table().by_class()
        else:
            classes = class_folders(Path(support))
        names = tuple(classes)
        if len(names) < 2:
            raise DertsError(f"support has {len(names)} classes: give at least two")
        learner, trained, name = self.learner, self.config.tasks.way, self.config.learner.name
        if len(names) != trained:
            if name != "protonet":
                wrong = f"{len(names)} classes but this {name} was trained for {trained}"
                fix = f"give {trained}, train with --tasks.way {len(names)}, or use protonet"
                raise DertsError(f"{wrong}: {fix}, which takes any number")
            # prototypes: nothing that was learned depends on their number
            learner = self._build(len(names)).to(learner.device)
        found: list[torch.Tensor] = []
        for one, given in classes.items():
            if isinstance(given, torch.Tensor) and given.ndim == 2 and not self.takes_features:
                found.append(given.to(learner.device))  # of a store that the backbone embedded
                continue
            decoded = self.decoded(self.items(given), left_out)
            rows = [
                learner.embedding.by_pretrained(send(part, learner.device)) for _, part in decoded
            ]
            if not sum(map(len, rows)):
                wrong = f"class {one!r} of the support has no image that can be read"
                raise DertsError(f"{wrong}: add at least one")
            found.append(torch.cat(rows))
        counts = torch.tensor([len(rows) for rows in found])
        labels, items = torch.arange(len(names)).repeat_interleave(counts), torch.cat(found)
        with self.turn, evaluation_mode(learner):
            if self.card.get("untrained"):
                assert isinstance(learner.backbone, FeatureBackbone)
                learner.backbone.fit(FeatureTable(items.cpu(), labels, names))
            parts = [learner.features(part[None]) for part in items.split(AT_ONCE)]
            adapted = learner.adapt(torch.cat(parts, 1), labels[None].to(learner.device))
        return Classifier(self, learner, names, adapted)

    def items(self, given: Any) -> Images | Matrix:
        """What a path holds, or a sequence of images or rows."""
        if self.takes_features:
            return rows_for_model(given, self.size)
        if not isinstance(given, str | Path):
            return Images(given)
        folder = Path(given)
        images, unread = photographs(folder)  # none of what is no folder
        if not images:
            fix = unread_note(unread) if unread else "give one of images"
            raise DertsError(f"{folder} is no folder, or holds no image: {fix}")
        return Images(images, folder)

    def decoded(
        self, images: Images | Matrix, left_out: LeftOut | None
    ) -> Iterator[tuple[list[str], torch.Tensor]]:
        """Some at a time, names and uint8 [n, size, size, channels], or features float32 [n, d]."""
        if isinstance(images, Matrix):
            start = 0
            for rows in images.blocks():
                yield [images.name(start + place) for place in range(len(rows))], rows
                start += len(rows)
            return
        for whole, pixels, broken in decode_all(images, 0, self.size, self.channels):
            for _, name, reason in broken:
                if left_out is None:
                    fix = "remove or replace it, or leave such images out (--skip-broken)"
                    raise DertsError(f"{name} cannot be read as an image ({reason}): {fix}")
                left_out.append((name, reason))
            yield [images.name(index) for index in whole], torch.from_numpy(pixels)

    def pixels(self, image: AnyImage) -> torch.Tensor:
        """Any image as uint8 [size, size, channels]."""
        _, pixels = next(self.decoded(Images([image]), None))
        return pixels[0]

    def save(self, path: Path | str) -> tuple[Path, Path]:
        """Write weights and card as one safetensors file, and the card beside it as JSON."""
        path = Path(path)
        # copies: MAML has its backbone under two names
        tensors = {name: x.detach().cpu().clone().contiguous() for name, x in self.weights.items()}
        if self.config.model.frozen and self.config.model.weights:  # no package has them
            kept = pretrained_weights(self.learner)
            tensors |= {f"{PRETRAINED}{name}": value for name, value in kept.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        about = {"derts": FORMAT, "card": json.dumps(self.card, indent=1)}
        write_atomically(path, save(tensors, about))
        return path, write_json(path.with_suffix(".json"), self.card)


@dataclass(frozen=True)
class Classifier:
    """A model adapted to some classes."""

    model: FewShotModel
    learner: AnyLearner
    class_names: tuple[str, ...]
    adapted: Any

    def predict(self, query: Path | str | Sequence[AnyImage], **options: Any) -> list[Prediction]:
        """What `stream` gives, in a list."""
        return list(self.stream(query, **options))

    def stream(
        self,
        query: Path | str | Sequence[AnyImage],
        *,
        left_out: LeftOut | None = None,
        progress: Progress = silent,
    ) -> Iterator[Prediction]:
        """A label and probabilities for each image of a folder, or of a sequence.

        A model of features takes a file of features, or an array [n, d].
        An image that cannot be read is an error, or is put into `left_out`.
        """
        images = self.model.items(query)
        unit = "rows" if self.model.takes_features else "images"
        with progress("predicting", len(images), unit) as advance:
            for names, pixels in self.model.decoded(images, left_out):
                rows: list[list[float]] = []  # of probabilities
                with self.model.turn, evaluation_mode(self.learner):
                    for part in pixels.split(AT_ONCE):
                        features = self.learner.features(part[None])
                        logits = self.learner.logits(self.adapted, features)[0]
                        rows += logits.float().softmax(-1).cpu().tolist()
                if any(math.isnan(share) for row in rows for share in row):
                    raise DertsError("the model computes numbers that are not finite: train again")
                for name, row in zip(names, rows, strict=True):
                    shares = dict(zip(self.class_names, row, strict=True))
                    best = max(shares, key=shares.__getitem__)
                    yield Prediction(name, best, shares[best], shares)
                advance(len(names))


def part_of(weights: Weights, prefix: str) -> Weights:
    """The weights whose names begin so, without that beginning."""
    return {name[len(prefix) :]: weights[name] for name in weights if name.startswith(prefix)}


def class_folders(folder: Path) -> dict[str, list[Path]]:
    """Image files by class: one folder each."""
    if not (folder.is_dir() and (inner := folders_in(folder))):
        fix = "give one with a folder of images per class"
        raise DertsError(f"{folder} is not a folder, or holds none: {fix}")
    return {one.name: [one / name for name in list_class(one, one.name)[0]] for one in inner}
