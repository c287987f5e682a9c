"""From a trained run to labels for somebody's images, and to a file to hand on."""

import csv
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import derts
from derts.cli import run
from derts.commands.predict import sheet_images
from derts.config import LearnerConfig, ModelConfig, TaskConfig, TrainConfig
from derts.data import ImageTable, glyphs, save_table
from derts.errors import DertsError
from derts.model_files import load_model
from derts.predict import FewShotModel, Prediction
from derts.progress import Advance
from derts.training.checkpoint import checkpoint_files, load_checkpoint, save_checkpoint
from derts.training.run import open_trainer
from tests.tiny import LEARNING_WORDS

pytestmark = pytest.mark.slow

SMALL = [*LEARNING_WORDS, "--model.width", "12", "--tasks.way", "3"]


def part(table: ImageTable, groups: list[torch.Tensor], split: str) -> ImageTable:
    """Some classes of a table, dark on light as the photos are."""
    labels = torch.arange(len(groups)).repeat_interleave(torch.tensor([len(g) for g in groups]))
    names = tuple(f"class {number}" for number in range(len(groups)))
    return ImageTable(255 - table.gather(torch.cat(groups)), labels, names, split)


@pytest.fixture(scope="module")
def own(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store, a run on it, a support folder of new classes and a query folder."""
    folder = tmp_path_factory.mktemp("predict")
    table = glyphs(characters=60, images_per_character=24)["train"]
    groups = table.class_indices()
    save_table(
        {
            "train": part(table, groups[12:], "train"),
            "test": part(table, groups[:12], "test"),
        },
        folder / "store",
    )
    (folder / "query").mkdir()
    for number, source in enumerate(sorted(photos.iterdir())[8:]):
        (folder / "support" / source.name).mkdir(parents=True)
        for place, file in enumerate(sorted(source.iterdir())[:9]):
            target = folder / "support" / source.name / file.name
            if place >= 3 + number % 2:  # shots may differ between classes
                target = folder / "query" / f"{source.name}-{file.name}"
            shutil.copy(file, target)
    words = ["train", "--data", str(folder / "store"), *SMALL, "--updates", "150"]
    assert run([*words, "--out", str(folder / "run")]) == 0
    return folder


def right(found: list[derts.predict.Prediction]) -> float:
    return sum(one.name.startswith(one.label) for one in found) / len(found)


def test_four_new_classes_from_a_few_images_each(own: Path) -> None:
    classifier = derts.load_model(own / "run").adapt(own / "support")
    found = classifier.predict(own / "query")
    assert len(found) == 22
    assert right(found) > 0.5  # chance is 0.25; the model was trained for three classes
    for one in found:
        assert sum(one.probabilities.values()) == pytest.approx(1, abs=1e-4)
        assert one.probability == max(one.probabilities.values())


def test_the_command_writes_a_table_and_a_picture_sheet(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--support", str(own / "support"), "--query", str(own / "query")]
    assert run(["predict", str(own / "run"), *where, "--out", str(tmp_path / "labels.csv")]) == 0
    assert "letter-08" in capsys.readouterr().out
    with (tmp_path / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = load_model(own / "run").adapt(own / "support").predict(own / "query")
    assert [(row["image"], row["label"]) for row in rows] == [(e.name, e.label) for e in expected]
    assert float(rows[0][rows[0]["label"]]) == float(rows[0]["probability"])
    with Image.open(tmp_path / "labels.png") as sheet:
        assert sheet.width > 800
    words = ["predict", str(own / "run"), *where, "--out", str(tmp_path / "labels.csv")]
    (tmp_path / "labels.csv").write_text("mine")
    assert run(words) == 2
    assert "labels.csv already exists" in capsys.readouterr().err
    assert (tmp_path / "labels.csv").read_text() == "mine"
    assert run([*words, "--overwrite"]) == 0
    assert (tmp_path / "labels.csv").read_text() != "mine"


def test_the_command_keeps_a_label_per_image_alone(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Prediction] = []

    def note(support: Path, query: Path, found: list[Prediction], lost: object) -> list[object]:
        kept.extend(found)
        return []

    monkeypatch.setattr("derts.commands.predict.sheet_images", note)
    where = ["--support", str(own / "support"), "--query", str(own / "query")]
    assert run(["predict", str(own / "run"), *where, "--out", str(tmp_path / "labels.csv")]) == 0
    assert [one.probabilities for one in kept] == [{}] * 22


def test_the_sheet_shows_examples_and_every_label(own: Path) -> None:
    labels = sorted(path.name for path in (own / "support").iterdir())
    found = [
        Prediction(f"{number:03d}.png", labels[number // 100], 0.5, {}) for number in range(400)
    ]
    shown = sheet_images(own / "support", own / "query", found, [])
    assert len(shown) == 100
    captions = [caption for _, caption in shown]
    for label in labels:
        assert captions.count(f"example: {label}") == 3
        assert sum(caption.startswith(f"{label} 50%\n") for caption in captions) == 22
    broken = str(shown[0][0])
    assert broken not in [
        str(path) for path, _ in sheet_images(own / "support", own, [], [(broken, "")])
    ]


def test_an_exported_model_predicts_the_same_without_the_run(own: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    assert run(["export", str(own / "run"), str(file)]) == 0
    card = json.loads((tmp_path / "model.json").read_text())
    result = json.loads((own / "run" / "result.json").read_text())
    assert card["results"]["accuracy"] == result["accuracy"]
    assert card["config"]["tasks"]["way"] == 3
    assert card["data"]["trained_on"] == {"count": 624, "classes": 26}
    assert all(isinstance(value, torch.Tensor) for value in load_file(file).values())
    first = load_model(own / "run").adapt(own / "support").predict(own / "query")
    assert load_model(file).adapt(own / "support").predict(own / "query") == first


@pytest.mark.parametrize("name", ["anil", "maml"])
def test_a_head_of_fixed_size_takes_its_own_number_of_classes_only(
    name: str, own: Path, tmp_path: Path
) -> None:
    words = ["train", "--data", str(own / "store"), *SMALL, "--learner.name", name]
    assert run([*words, "--updates", "2", "--out", str(tmp_path / "run")]) == 0
    model = load_model(tmp_path / "run")
    with pytest.raises(DertsError, match=r"4 classes but this .* was trained for 3"):
        model.adapt(own / "support")
    folders = sorted((own / "support").iterdir())[:3]
    classes = {folder.name: sorted(folder.iterdir()) for folder in folders}
    whole = model.adapt(classes).predict(own / "query")
    one_by_one = model.adapt(classes).predict(sorted((own / "query").iterdir())[:2])
    for one, other in zip(whole, one_by_one, strict=False):  # images do not influence each other
        assert one.probability == pytest.approx(other.probability, abs=1e-4)


def test_images_may_be_arrays_or_pillow_images(own: Path) -> None:
    model = load_model(own / "run")
    black, white = numpy.zeros((28, 28, 1), numpy.uint8), Image.new("RGB", (40, 60), "white")
    found = model.adapt({"black": [black], "white": [white]}).predict([white, black])
    assert [one.label for one in found] == ["white", "black"]


def untrained(name: str, size: int = 28, width: int = 4) -> FewShotModel:
    """A model as quick as possible, of two classes."""
    config = TrainConfig(
        tasks=TaskConfig(way=2),
        model=ModelConfig(width=width),
        learner=LearnerConfig(name),  # type: ignore[arg-type]
    ).resolved()
    shape = (size, size, 3)
    learner = derts.build_learner(config.learner, config.model, way=2, item_shape=shape)
    return FewShotModel(config, {"item_shape": shape}, learner.state_dict())


@pytest.mark.parametrize("name", ["protonet", "anil", "maml"])
def test_eight_threads_get_the_answers_of_one(name: str, own: Path) -> None:
    folders = sorted((own / "support").iterdir())
    model = untrained(name)

    def answer(number: int) -> list[Prediction]:
        chosen = folders[number % 2 :][:2]  # several classifiers of one model at a time
        return model.adapt({f.name: sorted(f.iterdir()) for f in chosen}).predict(own / "query")

    alone = [answer(number) for number in range(2)]
    assert alone[0] != alone[1]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(answer, range(8))) == alone * 4


def test_memory_does_not_grow_with_the_number_of_images(own: Path) -> None:
    """Pixels, features and probabilities are of some hundred images at a time."""
    files = sorted((own / "query").iterdir())
    classes = {str(number): files[:1] for number in range(200)}
    classifier = untrained("protonet", 84, width=1).adapt(classes)
    told: list[tuple[int, float]] = []

    @contextmanager
    def watch(title: str, total: int | None, unit: str = "steps") -> Iterator[Advance]:
        pages = Path("/proc/self/statm")
        if not pages.exists():
            pytest.skip("this system does not say how much memory a process has")

        def advance(count: int = 1, note: str | None = None, *, before: bool = False) -> None:
            told.append((count, int(pages.read_text().split()[1]) * 4096 / 1e6))

        yield advance

    assert sum(1 for _ in classifier.stream((files * 100)[:1800], progress=watch)) == 1800
    assert sum(count for count, _ in told) == 1800
    used = [megabytes for _, megabytes in told]
    assert max(used) < used[4] + 12  # the pixels alone are 38 MB, the probabilities 25 MB


def test_what_is_left_out_is_said_in_the_last_lines(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(own / "query", tmp_path / "query")
    (tmp_path / "query" / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n{} loop\n")
    for name in ("b.heic", "c.HEIC"):
        (tmp_path / "query" / name).touch()
    words = ["predict", str(own / "run"), "--support", str(own / "support"), "--query"]
    words += [str(tmp_path / "query"), "--out", str(tmp_path / "labels.csv")]
    assert run(words) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("derts: a.png cannot be read as an image (not an image of a known")
    assert not (tmp_path / "labels.csv").exists()
    assert run([*words, "--skip-broken"]) == 0
    shown = capsys.readouterr()
    assert "22 images" in shown.err or "23 images" in shown.err
    *_, broken, unread = shown.out.splitlines()
    assert broken.startswith("left out 1 broken images, the first is a.png (not an image")
    assert unread.startswith("2 files are HEIC, which is not read: convert them, or install pillow")
    (tmp_path / "none" / "x").mkdir(parents=True)
    (tmp_path / "none" / "x" / "b.heic").touch()
    with pytest.raises(
        DertsError, match=r"class 'x' has no image that can be read: 1 file is HEIC"
    ):
        load_model(own / "run").adapt(tmp_path / "none")
    with pytest.raises(DertsError, match=r"holds no image: 1 file is HEIC"):
        load_model(own / "run").adapt(own / "support").predict(tmp_path / "none")


def test_what_cannot_be_predicted_is_named(own: Path, tmp_path: Path) -> None:
    model = load_model(own / "run")
    (tmp_path / "support" / "only").mkdir(parents=True)
    with pytest.raises(DertsError, match="1 classes: give at least two"):
        model.adapt(tmp_path / "support")
    (tmp_path / "support" / "none").mkdir()
    with pytest.raises(DertsError, match="'none' of the support has no image"):
        model.adapt(tmp_path / "support")
    with pytest.raises(DertsError, match="holds no image"):
        model.adapt(own / "support").predict(tmp_path)
    (tmp_path / "bad.png").write_bytes(b"nothing")
    with pytest.raises(DertsError, match=r"bad\.png cannot be read"):
        model.adapt(own / "support").predict(tmp_path)
    with pytest.raises(DertsError, match="not a folder"):
        model.adapt(tmp_path / "nowhere")
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    with pytest.raises(DertsError, match="is no model"):
        load_model(tmp_path / "model.safetensors")
    with pytest.raises(
        DertsError, match=r"not a run folder, nor .*\(efficientnet-lite0, timm:NAME"
    ):
        load_model(tmp_path / "resnet18")  # whoever leaves out timm: finds how it is named


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(own / "run", tmp_path / "run")
    newest = checkpoint_files(tmp_path / "run" / "checkpoints")[-1]
    older = newest.with_name("update-0000000.ckpt")
    older.write_bytes(newest.read_bytes())
    newest.write_bytes(newest.read_bytes()[:-1])
    load_model(tmp_path / "run")
    assert "going on from the one before it, update-0000000.ckpt" in capsys.readouterr().err
    older.write_bytes(b"")
    with pytest.raises(DertsError, match="none before it that is whole: train again"):
        load_model(tmp_path / "run")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_with_numbers_that_are_not_finite_is_refused(
    own: Path, tmp_path: Path, value: float
) -> None:
    shutil.copytree(own / "run", tmp_path / "run")
    load_model(own / "run").save(tmp_path / "model.safetensors")
    with safe_open(str(tmp_path / "model.safetensors"), framework="pt") as file:
        about = file.metadata()
    weights = load_file(tmp_path / "model.safetensors")
    next(x for x in weights.values() if x.is_floating_point()).view(-1)[0] = value
    save_file(weights, tmp_path / "model.safetensors", about)
    with pytest.raises(DertsError, match="holds numbers that are not finite"):
        load_model(tmp_path / "model.safetensors")
    newest = checkpoint_files(tmp_path / "run" / "checkpoints")[-1]
    state = load_checkpoint(newest)
    next(x for x in state["learner"].values() if x.is_floating_point()).view(-1)[0] = value
    save_checkpoint(newest.parent, state["update"], state)
    with pytest.raises(DertsError, match="holds numbers that are not finite"):
        load_model(tmp_path / "run")
    with pytest.raises(DertsError, match="holds numbers that are not finite"):
        open_trainer(tmp_path / "run")


def test_finite_weights_whose_answers_are_not_numbers_label_nothing(own: Path) -> None:
    model = load_model(own / "run")
    for value in model.weights.values():  # of which a learner of four classes is built
        if value.is_floating_point():
            value.fill_(3e38)
    with pytest.raises(DertsError, match="computes numbers that are not finite"):
        model.adapt(own / "support").predict(own / "query")
