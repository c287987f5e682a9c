"""Images judged by a run's model: inspect, clean and corrupt, from the command line."""

import csv
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from derts.cli import run
from derts.data import ImageTable, item_names, open_store, prepare, verify_store
from derts.labels.judging import item_features
from derts.labels.trust import Trust
from tests.tiny import LEARNING_WORDS, tiny_learner

SMALL = [*LEARNING_WORDS, "--model.width", "16", "--tasks.way", "5", "--updates", "120"]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def command(*words: object) -> None:
    assert run([str(word) for word in words]) == 0, words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a fifth of the labels wrong, a run trained on it, and what inspect wrote."""
    found = tmp_path_factory.mktemp("wrong")
    command("data", "corrupt", "glyphs-60x30", found / "store", "--rate", "0.2")
    command("train", "--data", found / "store", *SMALL, "--out", found / "run")
    command("inspect", found / "run", "--quiet")
    return found


@pytest.fixture(scope="module")
def wrong(folder: Path) -> set[str]:
    """Paths of the training images whose labels are wrong."""
    images = open_store(folder / "store")["train"]
    true = torch.from_numpy(np.load(folder / "store" / "true_labels.npy"))
    bad = (true != images.labels).nonzero().squeeze(1).tolist()
    assert len(bad) == 228  # 6 of 30 images in each of 38 classes
    return {f"train/{images.class_names[int(images.labels[n])]}/{n}" for n in bad}


@pytest.mark.slow
def test_wrong_labels_come_first_and_all_splits_are_listed(
    folder: Path, wrong: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(folder / "run" / "inspect" / "images.csv")
    assert len({row["path"] for row in rows}) == len(rows) == 1800
    assert {row["split"] for row in rows} == {"train", "val", "test"}
    right = [float(row["label is right"]) for row in rows]
    assert right == sorted(right)
    assert sum(row["path"] in wrong for row in rows[:50]) > 35
    for name, least in (("images.png", 10_000), ("review.html", 100_000), ("classes.csv", 1000)):
        assert (folder / "run" / "inspect" / name).stat().st_size > least
    command("inspect", folder / "run", "--quiet", "--score", "--split", "train")
    shown = capsys.readouterr().out
    assert "average precision 0." in shown
    assert "20.0% true" in shown
    assert len(rows_of(folder / "run" / "inspect-train" / "images.csv")) == 1140


@pytest.mark.slow
def test_an_image_may_look_like_a_class_of_another_split(folder: Path) -> None:
    heading = ["class", "confused with", "images", "look wrong"]
    assert list(rows_of(folder / "run" / "inspect" / "classes.csv")[0]) == heading
    elsewhere = {
        name
        for split, table in open_store(folder / "store").items()
        for name in table.class_names
        if split != "train"
    }
    rows = rows_of(folder / "run" / "inspect" / "images.csv")
    assert any(row["split"] == "train" and row["suggestion"] in elsewhere for row in rows)


@pytest.mark.slow
def test_nothing_but_scoring_reads_the_true_labels(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "store", tmp_path / "store")
    (tmp_path / "store" / "true_labels.npy").unlink()
    command("train", "--data", tmp_path / "store", *SMALL, "--out", tmp_path / "run")
    command("inspect", tmp_path / "run", "--quiet")
    for name in ("images.csv", "classes.csv", "review.html"):
        with_file = (folder / "run" / "inspect" / name).read_bytes()
        assert with_file == (tmp_path / "run" / "inspect" / name).read_bytes()
    assert run(["inspect", str(tmp_path / "run"), "--quiet", "--score"]) == 2
    assert "only what derts data corrupt wrote" in capsys.readouterr().err


@pytest.mark.slow
def test_a_cleaned_store_has_fewer_wrong_labels_and_the_source_stays(
    folder: Path, wrong: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command("clean", folder / "run", tmp_path / "drop", "--drop", "--quiet")
    command("clean", folder / "run", tmp_path / "mix", "--precision", "0.6", "--quiet")
    verify_store(folder / "store")
    for name in ("drop", "mix"):
        made = verify_store(tmp_path / name)
        source = open_store(folder / "store")
        assert made.splits["test"].count == len(source["test"])  # not cleaned by itself
        assert made.splits["train"].per_class[0] >= 20
        changes = rows_of(tmp_path / name / "changes.csv")
        assert {row["split"] for row in changes} == {"train"}
        hit = sum(row["path"] in wrong for row in changes) / max(1, len(changes))
        assert hit > 0.6
        paths = item_names(tmp_path / name, "train")
        assert paths is not None
        gone = {row["path"] for row in changes if row["change"] == "drop"}
        assert not gone & set(paths)
        table = open_store(tmp_path / name)["train"]
        given = dict(zip(paths, table.labels.tolist(), strict=True))
        for row in changes:
            if row["change"] == "relabel":
                assert table.class_names[given[row["path"]]] == row["new class"]
        number = next(n for n, path in enumerate(paths) if path not in wrong)
        old = int(paths[number].rsplit("/", 1)[1])
        assert torch.equal(table.items[number], source["train"].items[old])
    assert {row["change"] for row in rows_of(tmp_path / "drop" / "changes.csv")} == {"drop"}
    assert run(["clean", str(folder / "run"), str(tmp_path / "x"), "--mix", "--drop"]) == 2
    assert run(["clean", str(folder / "run"), str(folder / "store"), "--overwrite"]) == 2
    assert "the source itself" in capsys.readouterr().err
    verify_store(folder / "store")


@pytest.mark.slow
def test_what_a_person_decided_is_done(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third, test = [
        *rows_of(folder / "run" / "inspect" / "images.csv")[:3],
        next(r for r in rows_of(folder / "run" / "inspect" / "images.csv") if r["split"] == "test"),
    ]
    other = "U+0033 3" if first["class"] != "U+0033 3" else first["suggestion"]

    def review(rows: Sequence[Sequence[str]]) -> Path:
        path = tmp_path / "review.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            heading = ("path", "split", "class", "decision", "new class")
            csv.writer(file).writerows([heading, *rows])
        return path

    def row(of: dict[str, str], decision: str, new: str = "") -> tuple[str, ...]:
        return of["path"], of["split"], of["class"], decision, new

    path = review([row(first, "relabel", other), row(second, "keep"), row(third, "drop"),
                   row(test, "relabel", other)])  # fmt: skip
    command("clean", folder / "run", tmp_path / "mine", "--apply", path, "--quiet")
    changes = rows_of(tmp_path / "mine" / "changes.csv")
    assert [(c["path"], c["change"], c["by"]) for c in changes] == [
        (first["path"], "relabel", "review"),
        (third["path"], "drop", "review"),
        (test["path"], "relabel", "review"),
    ]
    names = item_names(tmp_path / "mine", "train")
    assert names is not None
    assert test["path"] in names  # it moved to the split of its class
    assert third["path"] not in names
    command("clean", folder / "run", tmp_path / "both", "--apply", path, "--mix", "--quiet")
    both = rows_of(tmp_path / "both" / "changes.csv")
    assert both[:3] == changes
    assert len(both) > 20
    assert second["path"] not in {one["path"] for one in both}
    for bad, told in (
        (row(first, "maybe"), "a decision is keep"),
        (row(first, "relabel", "unheard of"), "no class here"),
        (("nowhere", "train", "", "keep", ""), "no image here"),
    ):
        words = ["clean", folder / "run", tmp_path / "no", "--apply", review([bad]), "--quiet"]
        assert run([str(word) for word in words]) == 2
        assert told in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("name", ["anil", "protonet", "maml"])
def test_features_are_in_the_order_of_the_table(name: str, letters: dict[str, ImageTable]) -> None:
    images = letters["val"]
    learner = tiny_learner(name, images)
    features = item_features(learner, images)
    assert features.shape == (len(images), int(learner.backbone.dim))  # type: ignore[arg-type]
    twice = replace(images, items=images.images.repeat(2, 1, 1, 1), labels=images.labels.repeat(2))
    if name != "maml":  # which normalises a batch by itself
        again = item_features(learner, twice)
        assert torch.allclose(again[: len(images)], features, atol=1e-4)
        assert torch.allclose(again[len(images) :], features, atol=1e-4)


def test_a_store_made_from_files_knows_their_names(photos: Path, tmp_path: Path) -> None:
    broken = tmp_path / "photos"
    shutil.copytree(photos, broken)
    (broken / "letter-03" / "05.png").write_bytes(b"no picture")
    prepare(broken, tmp_path / "store", size=8, workers=1, skip_broken=True)
    command("data", "corrupt", tmp_path / "store", tmp_path / "wrong", "--noise", "pair",
            "--rate", "0.5")  # fmt: skip
    for split, table in open_store(tmp_path / "store").items():
        names = item_names(tmp_path / "store", split)
        assert names is not None
        assert len(names) == len(table)
        folders = [table.class_names[label] for label in table.labels.tolist()]
        assert [name.split("/")[0] for name in names] == folders
        assert "letter-03/05.png" not in names
        assert item_names(tmp_path / "wrong", split) == names
    assert item_names("glyphs", "train") is None


def test_corrupting_again(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = str(tmp_path / "wrong")
    for _ in range(2):
        command("data", "corrupt", "glyphs-60x12", to, "--rate", "0.1", "--overwrite")
    for source in (to, str(folder / "store")):
        words = ["data", "corrupt", source, to, "--rate", "0.1", "--overwrite"]
        assert run(words) == 2
        said = "is the source itself" if source == to else "has wrong labels already: take the"
        assert said in capsys.readouterr().err


def test_no_class_is_left_with_too_few_when_another_takes_its_images_back() -> None:
    given = torch.tensor([0] * 6 + [1] * 6 + [2] * 6)
    # class 0 loses three images to class 1, which loses all of its own to class 2
    suggestion = torch.tensor([1, 1, 1, 0, 0, 0] + [2] * 6 + [2] * 6)
    probability = torch.where(suggestion == given, 0.9, 0.1)
    names = ("a", "b", "c")
    trust = Trust(probability, given, suggestion, torch.full((18,), 0.9), probability,
                  torch.eye(3), names)  # fmt: skip
    for fewest in (1, 4, 5, 6):
        assert int(torch.bincount(trust.kept(fewest), minlength=3).min()) >= fewest
