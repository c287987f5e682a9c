"""Which images look mislabelled: found where we put them."""

import csv
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from derts.cli import run
from derts.data import ImageTable, glyphs, image_names, open_store, prepare, save_table
from derts.labels.inspection import Looks, rank_classes, rank_images, wrong_among_first
from derts.tasks import TaskNoise, TaskPool, generator

SMALL = [
    "--model.width", "12", "--tasks.way", "5", "--tasks.shot", "3", "--tasks.query", "4",
    "--meta-batch", "4", "--evaluation.tasks", "10", "--evaluation.query", "4", "--quiet",
    "--learner.distance-divisor", "4",
]  # fmt: skip


def test_mislabelled_images_come_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = dict(glyphs(characters=100, images_per_character=20))
    clean, random = tables["train"], generator((0, "mislabel"))
    bad = torch.randperm(len(clean), generator=random)[: len(clean) // 10]
    steps = torch.randint(1, len(clean.class_names), bad.shape, generator=random)
    labels = clean.labels.clone()
    labels[bad] = (labels[bad] + steps) % len(clean.class_names)
    tables["train"] = replace(clean, labels=labels)
    save_table(tables, tmp_path / "store")
    rows = [f"{i},{clean.class_names[int(clean.labels[i])]}\n" for i in bad.tolist()]
    (tmp_path / "truth.csv").write_text("image,class\n" + "".join(rows))
    words = ["train", "--data", str(tmp_path / "store"), *SMALL, "--updates", "60"]
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


def test_counts_are_those_of_the_tasks() -> None:
    table = ImageTable(
        torch.zeros(6, 4, 4, 1, dtype=torch.uint8), torch.tensor([0, 0, 0, 1, 1, 1]), ("a", "b")
    )
    pool = TaskPool(
        support=torch.tensor([[0, 3], [1, 4]]),
        support_labels=torch.tensor([[0, 1], [0, 1]]),
        query=torch.tensor([[1, 4], [2, 3]]),
        query_labels=torch.tensor([[0, 1], [0, 1]]),
        true_support_labels=torch.tensor([[0, 1], [0, 1]]),
        true_query_labels=torch.tensor([[0, 1], [0, 1]]),
        way=2,
    )
    looks = Looks(
        given=torch.tensor([[0.9, 0.2], [0.8, 0.7]]),
        predicted=torch.tensor([[0, 0], [0, 1]]),
        mistaken=torch.tensor([[False, True], [False, False]]),
        dropped=torch.tensor([True, False]),
    )
    ranked = rank_images(table, pool, looks)
    assert [one.index for one in ranked] == [4, 3, 2, 1]
    first = ranked[0]
    assert (first.class_name, first.looks_like, first.seen) == ("b", "a", 1)
    assert (first.mistaken, first.dropped) == (1.0, 0.5)  # in one of its two tasks
    assert first.probability == pytest.approx(0.2)
    classes = rank_classes(table, ranked)
    assert [one.class_name for one in classes] == ["b", "a"]
    assert classes[0].mistaken == 0.5


def test_known_noise_is_counted_by_the_true_labels(letters: dict[str, ImageTable]) -> None:
    noise = TaskNoise(0.5, 0.8)
    pool = TaskPool.sample(letters["train"], tasks=40, way=3, shot=1, query=5, seed=0, noise=noise)
    wrong = pool.query_labels != pool.true_query_labels
    shape = pool.query.shape
    oracle = Looks(
        torch.where(wrong, 0.1, 0.9),
        torch.zeros(shape, dtype=torch.int64),
        wrong,
        torch.zeros(40, dtype=torch.bool),
    )
    first, found, share = wrong_among_first(pool, oracle)
    assert (first, found) == (100, 100)
    assert share == pytest.approx(float(wrong.float().mean()))
