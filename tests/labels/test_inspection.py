"""Which images look mislabelled: found where we put them."""

import csv
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from derts.cli import run
from derts.config import LearnerConfig, ModelConfig
from derts.data import ImageTable, glyphs, image_names, open_store, prepare, save_table
from derts.errors import DertsError
from derts.labels.inspection import Suspect, image_features, rank_classes, rank_images
from derts.learners import build_learner
from derts.tasks import generator

SMALL = [
    "--model.width", "12", "--tasks.way", "5", "--tasks.shot", "3", "--tasks.query", "4",
    "--meta-batch", "4", "--evaluation.tasks", "10", "--evaluation.query", "4", "--quiet",
    "--learner.distance-divisor", "4",
]  # fmt: skip


def table_of(labels: torch.Tensor, classes: int) -> ImageTable:
    pixels = torch.zeros(len(labels), 2, 2, 1, dtype=torch.uint8)
    return ImageTable(pixels, labels, tuple(f"class {number}" for number in range(classes)))


def mislabel(table: ImageTable, share: float) -> tuple[ImageTable, torch.Tensor]:
    """The table with that share of wrong labels, and which images have them."""
    random = generator((0, "mislabel"))
    bad = torch.randperm(len(table), generator=random)[: round(share * len(table))]
    classes, labels = len(table.class_names), table.labels.clone()
    labels[bad] = (labels[bad] + torch.randint(1, classes, bad.shape, generator=random)) % classes
    return replace(table, labels=labels), bad


def test_mislabelled_images_come_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = dict(glyphs(characters=60, images_per_character=20))
    clean = tables["train"]
    tables["train"], bad = mislabel(clean, 0.1)
    save_table(tables, tmp_path / "store")
    rows = [f"{i},{clean.class_names[int(clean.labels[i])]}\n" for i in bad.tolist()]
    (tmp_path / "truth.csv").write_text("image,class\n" + "".join(rows))
    words = ["train", "--data", str(tmp_path / "store"), *SMALL, "--updates", "30"]
    assert run([*words, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    found = ["inspect", str(tmp_path / "run"), "--truth", str(tmp_path / "truth.csv"), "--quiet"]
    assert run(found) == 0
    shown = re.search(r"first 100 images, (\d+) really are .*\((\d+) by", capsys.readouterr().out)
    assert shown is not None
    assert int(shown[2]) == 10
    assert int(shown[1]) > 35
    folder = tmp_path / "run" / "inspect"
    with (folder / "images.csv").open(newline="") as table:
        ranked = [int(row["image"]) for row in csv.DictReader(table)]
    assert sorted(ranked) == list(range(len(clean)))
    assert len(set(ranked[:100]) & set(bad.tolist())) == int(shown[1])
    assert (folder / "images.png").stat().st_size > 10_000
    assert (folder / "classes.csv").read_text().count("\n") == 1 + len(clean.class_names)
    (tmp_path / "truth.csv").write_text("image,class\nnowhere.png,a\n")
    assert run(found) == 2
    assert "nowhere.png" in capsys.readouterr().err


def test_wrong_labels_of_clear_classes_are_all_found() -> None:
    random = generator(0)
    labels = torch.arange(10).repeat_interleave(30)
    centres = torch.randn(10, 16, generator=random)
    features = centres[labels] + 0.3 * torch.randn(300, 16, generator=random)
    table, bad = mislabel(table_of(labels, 10), 0.2)
    ranked = rank_images(features, table)
    assert {one.index for one in ranked[: len(bad)]} == set(bad.tolist())
    assert all((one.margin > 0) == (place < len(bad)) for place, one in enumerate(ranked))
    for one in ranked[: len(bad)]:
        assert one.looks_like == f"class {int(labels[one.index])}"


def test_an_image_does_not_vouch_for_itself_and_one_alone_is_not_judged() -> None:
    features = torch.tensor([[1.0, 0], [1, 0.1], [0, 1], [0.1, 1], [1, 0.05], [5, 5]])
    table = table_of(torch.tensor([0, 0, 1, 1, 1, 2]), 4)  # nobody is of class 3
    ranked = rank_images(features, table)
    assert (ranked[0].index, ranked[0].looks_like) == (4, "class 0")
    assert sorted(one.index for one in ranked) == [0, 1, 2, 3, 4]
    with pytest.raises(DertsError, match="fewer than two classes"):
        rank_images(features, table_of(torch.zeros(6, dtype=torch.int64), 1))


def test_classes_by_the_share_that_looks_mislabelled() -> None:
    suspects = [
        Suspect(0, "cat", "dog", 0.5),
        Suspect(1, "cat", "fox", 0.2),
        Suspect(2, "cat", "dog", 0.1),
        Suspect(3, "dog", "cat", -0.4),
    ]
    first, second = rank_classes(suspects)
    assert (first.class_name, first.looks_like, first.images) == ("cat", "dog", 3)
    assert (first.suspicious, first.margin) == (1.0, pytest.approx(0.8 / 3))
    assert (second.class_name, second.looks_like, second.suspicious) == ("dog", "", 0.0)


@pytest.mark.parametrize("name", ["anil", "protonet", "maml"])
def test_features_are_in_the_order_of_the_table(name: str, letters: dict[str, ImageTable]) -> None:
    images = letters["val"]
    learner = build_learner(
        LearnerConfig(name),  # type: ignore[arg-type]
        ModelConfig(width=4),
        way=3,
        image_shape=images.image_shape,
    )
    features = image_features(learner, images)
    assert features.shape == (len(images), int(learner.backbone.dim))  # type: ignore[arg-type]
    twice = replace(images, images=images.images.repeat(2, 1, 1, 1), labels=images.labels.repeat(2))
    if name != "maml":  # which normalises a batch by itself
        again = image_features(learner, twice)
        assert torch.allclose(again[: len(images)], features, atol=1e-4)
        assert torch.allclose(again[len(images) :], features, atol=1e-4)


def test_a_store_made_from_files_knows_their_names(photos: Path, tmp_path: Path) -> None:
    broken = tmp_path / "photos"
    shutil.copytree(photos, broken)
    (broken / "letter-03" / "05.png").write_bytes(b"no picture")
    prepare(broken, tmp_path / "store", size=8, workers=1, skip_broken=True)
    for split, table in open_store(tmp_path / "store").items():
        names = image_names(tmp_path / "store", split)
        assert names is not None
        assert len(names) == len(table)
        folders = [table.class_names[label] for label in table.labels.tolist()]
        assert [name.split("/")[0] for name in names] == folders
        assert "letter-03/05.png" not in names
    assert image_names("glyphs", "train") is None
