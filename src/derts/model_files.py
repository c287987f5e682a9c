"""Models from run folders, from files that `derts export` wrote, and pretrained ones by name."""

from pathlib import Path

from safetensors import SafetensorError, safe_open

from derts.config import ModelConfig, TrainConfig
from derts.config_file import as_values, with_values
from derts.data import open_data
from derts.errors import DertsError
from derts.files import parse_json
from derts.learners import build_learner
from derts.models.pretrained import LITE0, TIMM, Pretrained, load_pretrained
from derts.predict import FORMAT, PRETRAINED, Card, FewShotModel, Weights, part_of
from derts.training.checkpoint import best_weights, check_finite, newest_checkpoint
from derts.training.memory import check_file_size
from derts.training.run_folder import Run

RESULTS = (  # what a card tells of a run's result
    "updates", "weights_of_update", "tasks_trained", "split", "accuracy", "interval", "parts",
    "notes", "code", "machine",
)  # fmt: skip
Parts = tuple[TrainConfig, Card, Weights, Pretrained | None]


def load_model(path: Path | str, weights: str = "") -> FewShotModel:
    """The model of a run folder's newest checkpoint, or of a file that `derts export` wrote.

    Where there is nothing of that name, the pretrained backbone of that name, without training:
    `efficientnet-lite0`, or `timm:NAME` with `weights`. docs/index.md has an example that runs.
    """
    about, path = ModelConfig(str(path), weights=weights, head="none"), Path(path)
    if about.pretrained and not path.exists():
        return FewShotModel(*_untrained(about))
    if not path.exists():
        fix = f"give one that derts wrote, or a pretrained backbone ({LITE0}, {TIMM}NAME)"
        raise DertsError(f"{path} is not a run folder, nor a file of a model: {fix}")
    file, parts = (path, _of_file(path)) if path.is_file() else _of_run(path)
    check_file_size(parts[0], tuple(parts[1]["item_shape"]), [file])
    try:
        return FewShotModel(*parts)
    except RuntimeError as error:
        wrong = f"{file} does not fit its config ({str(error).splitlines()[-1].strip()})"
        raise DertsError(f"{wrong}: use the config it was trained with") from None


def _untrained(about: ModelConfig) -> Parts:
    """A pretrained backbone whose class means are taken as they are."""
    pretrained, config = load_pretrained(about.backbone, about.weights), TrainConfig(model=about)
    shape = (pretrained.size, pretrained.size, 3)
    learner = build_learner(
        config.learner, about, way=config.tasks.way, item_shape=shape, pretrained=pretrained
    )
    card = {"format": FORMAT, "item_shape": list(shape), "config": as_values(config)}
    return config, {**card, "untrained": True}, learner.state_dict(), pretrained


def _of_run(path: Path) -> tuple[Path, Parts]:
    run = Run.open(path)
    found = newest_checkpoint(run.path / "checkpoints")
    if found is None:
        raise DertsError(f"{path} holds no checkpoint: train it first")
    file, state = found
    result, config = run.result() or {}, run.config
    shape = result.get("item_shape")
    if by := result.get("embedded_by"):  # the data was features of images
        by = by if isinstance(by, dict) else {}
        whole = {name: by.get(name) for name in ("backbone", "weights")}
        whole["head"] = config.model.backbone
        config = with_values(config, {"model": whole}, str(run.path))
        shape = by.get("item_shape", [])
    if not (shape is None or _is_shape(shape)):
        raise DertsError(f"{path / 'result.json'} is damaged (items of shape {shape}): remove it")
    card = {
        "format": FORMAT,
        "item_shape": list(shape or open_data(run.data())["train"].item_shape),
        "config": as_values(config),
        "data": {"name": Path(config.data).name, "trained_on": result.get("images", {})},
        "results": {key: result[key] for key in RESULTS if key in result},
    }
    return file, (config, card, best_weights(state), None)


def _of_file(path: Path) -> Parts:
    try:
        with safe_open(str(path), framework="pt") as file:
            about = file.metadata() or {}
            if about.get("derts") != FORMAT:
                raise ValueError("derts did not write it")
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        check_finite(weights, "model")
        card = parse_json(about["card"])
        if not _is_shape(card["item_shape"]):
            raise ValueError(f"items of shape {card['item_shape']}")
        config = with_values(TrainConfig(), card["config"], str(path))
    except (SafetensorError, KeyError, TypeError, ValueError, OSError, RecursionError) as error:
        fix = "give a run folder, or a file that derts export wrote"
        raise DertsError(f"{path} is no model, or is damaged ({error}): {fix}") from None
    pretrained = None
    if kept := part_of(weights, PRETRAINED):
        pretrained = load_pretrained(config.model.backbone, kept)
        weights = {name: weights[name] for name in weights if not name.startswith(PRETRAINED)}
    return config, card, weights, pretrained


def _is_shape(found: object) -> bool:
    """Whether these are the lengths of an image's sides and channels, or of a row of features."""
    sides = found if isinstance(found, list) else []
    return len(sides) in (1, 3) and all(isinstance(side, int) and side > 0 for side in sides)
