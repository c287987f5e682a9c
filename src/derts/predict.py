"""Use a trained model: a few labelled images in, labels for the rest out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from derts.config import TrainConfig
from derts.config_file import as_values, with_values
from derts.data import open_data
from derts.data.decode import Pixels, decode, fit, strict_pillow
from derts.data.folders import list_images
from derts.errors import DertsError
from derts.files import parse_json, write_atomically, write_json
from derts.learners import AnyLearner, build_learner
from derts.learners.embedding import evaluation_mode
from derts.training.checkpoint import check_finite, judged_weights, newest_checkpoint
from derts.training.run_folder import Run

FORMAT = "derts-model-1"
AT_ONCE = 128
RESULTS = (
    "updates", "weights_of_update", "tasks_trained", "split", "accuracy", "interval", "parts",
    "notes", "code", "machine",
)  # fmt: skip
"""What a card tells of a run's result."""
AnyImage = Path | str | Image.Image | Pixels
Card = dict[str, Any]
Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Prediction:
    """One image's name, label, the label's probability, and that of every class."""

    name: str
    label: str
    probability: float
    probabilities: dict[str, float]


class FewShotModel:
    """A trained learner with what is needed to use it: config and card (image shape, results)."""

    def __init__(self, config: TrainConfig, card: Card, weights: Weights) -> None:
        self.config, self.card, self.weights = config, card, weights
        height, width, self.channels = card.get("item_shape") or card["image_shape"]
        if height != width:
            raise DertsError(
                f"the model was trained on images of {height}×{width} pixels: predicting from "
                "files needs square ones, as derts data prepare makes them"
            )
        self.size: int = height
        self.learner = self._build(config.tasks.way)

    def _build(self, way: int) -> AnyLearner:
        shape = (self.size, self.size, self.channels)
        learner = build_learner(self.config.learner, self.config.model, way=way, item_shape=shape)
        learner.load_state_dict(self.weights)
        return learner

    def adapt(self, support: Path | str | Mapping[str, Sequence[AnyImage]]) -> Classifier:
        """Learn new classes: a folder with a folder per class, or images by class name."""
        classes = support if isinstance(support, Mapping) else class_folders(Path(support))
        names = tuple(classes)
        if len(names) < 2:
            raise DertsError(f"support has {len(names)} classes: give at least two")
        empty = [name for name in names if not len(classes[name])]
        if empty:
            raise DertsError(f"class {empty[0]!r} of the support has no image: add at least one")
        learner, trained, name = self.learner, self.config.tasks.way, self.config.learner.name
        if len(names) != trained:
            if name != "protonet":
                raise DertsError(
                    f"support has {len(names)} classes but this {name} was trained for {trained}: "
                    f"give {trained} class folders, train with --tasks.way {len(names)}, or use "
                    "protonet, which takes any number"
                )
            # prototypes: nothing that was learned depends on their number
            learner = self._build(len(names)).to(learner.device)
        labels = torch.tensor([n for n, name in enumerate(names) for _ in classes[name]])
        pixels = torch.stack([self.pixels(image) for name in names for image in classes[name]])
        with evaluation_mode(learner):
            parts = [learner.features(part[None]) for part in pixels.split(AT_ONCE)]
            adapted = learner.adapt(torch.cat(parts, 1), labels[None].to(learner.device))
        return Classifier(self, learner, names, adapted)

    def pixels(self, image: AnyImage) -> torch.Tensor:
        """Any image as uint8 [size, size, channels]."""
        if isinstance(image, Image.Image):
            return torch.from_numpy(np.array(fit(image, self.size, self.channels)))
        try:
            content = Path(image).read_bytes() if isinstance(image, str | Path) else image
            with strict_pillow():
                found = decode(content, self.size, self.channels)
        except (OSError, ValueError, SyntaxError, Warning, Image.DecompressionBombError) as error:
            said = f"{image} cannot be read as an image ({error}): remove or replace it"
            raise DertsError(said) from None
        return torch.from_numpy(np.array(found))

    def save(self, path: Path | str) -> tuple[Path, Path]:
        """Write weights and card as one safetensors file, and the card beside it as JSON."""
        path = Path(path)
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.weights.items()}
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

    def predict(self, query: Path | str | Sequence[AnyImage]) -> list[Prediction]:
        """A label and probabilities for each image: a folder of images, or images."""
        if isinstance(query, str | Path):
            folder = Path(query)
            names = [name for name, _ in list_images(folder, folder)] if folder.is_dir() else []
            if not names:
                raise DertsError(f"{folder} is no folder, or holds no image: give one of images")
            images: Sequence[AnyImage] = [folder / name for name in names]
        else:
            images, of_file = query, (str, Path)
            names = [str(one if isinstance(one, of_file) else n) for n, one in enumerate(query)]
        found: list[Prediction] = []
        with evaluation_mode(self.learner):
            for start in range(0, len(images), AT_ONCE):
                part = images[start : start + AT_ONCE]
                pixels = torch.stack([self.model.pixels(image) for image in part])
                features = self.learner.features(pixels[None])
                logits = self.learner.logits(self.adapted, features)[0]
                for row in logits.float().softmax(-1).cpu().tolist():
                    shares = dict(zip(self.class_names, row, strict=True))
                    best = max(shares, key=shares.__getitem__)
                    found.append(Prediction(names[len(found)], best, shares[best], shares))
        return found


def load_model(path: Path | str) -> FewShotModel:
    """The model of a run folder's newest checkpoint, or of a file that `derts export` wrote.

    docs/index.md has an example that runs.
    """
    path = Path(path)
    if path.is_file():
        return _load_file(path)
    run = Run.open(path)
    found = newest_checkpoint(run.path / "checkpoints")
    if found is None:
        raise DertsError(f"{path} holds no checkpoint: train it first")
    file, state = found
    result = run.result() or {}
    shape = (
        result.get("item_shape")
        or result.get("image_shape")
        or open_data(run.config.data)["train"].item_shape
    )
    card = {
        "format": FORMAT,
        "item_shape": list(shape),
        "config": as_values(run.config),
        "data": {"name": Path(run.config.data).name, "trained_on": result.get("images", {})},
        "results": {key: result[key] for key in RESULTS if key in result},
    }
    return _model(run.config, card, judged_weights(state), file)


def _load_file(path: Path) -> FewShotModel:
    try:
        with safe_open(str(path), framework="pt") as file:
            about = file.metadata() or {}
            if about.get("derts") != FORMAT:
                raise ValueError("derts did not write it")
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        check_finite(weights, "model")
        card = parse_json(about["card"])
        config = with_values(TrainConfig(), card["config"], str(path))
    except (SafetensorError, KeyError, ValueError, OSError, RecursionError) as error:
        raise DertsError(
            f"{path} is no model, or is damaged ({error}): give a run folder, or a file that derts "
            "export wrote"
        ) from None
    return _model(config, card, weights, path)


def _model(config: TrainConfig, card: Card, weights: Weights, where: Path) -> FewShotModel:
    try:
        return FewShotModel(config, card, weights)
    except RuntimeError as error:
        raise DertsError(
            f"{where} does not fit its config ({str(error).splitlines()[-1].strip()}): use the "
            "config it was trained with"
        ) from None


def class_folders(folder: Path) -> dict[str, list[Path]]:
    """Image files by class: one folder each."""
    if not folder.is_dir():
        raise DertsError(f"{folder} is not a folder: give one with a folder of images per class")
    inner = sorted(child for child in folder.iterdir() if child.is_dir() and child.name[0] != ".")
    if not inner:
        raise DertsError(f"{folder} holds no folder: put each class's images into its own folder")
    return {one.name: [one / name for name, _ in list_images(one, one)] for one in inner}
