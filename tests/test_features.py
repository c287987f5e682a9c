"""Features that somebody brings, through every command: what they would type, without a picture."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import derts
from derts.cli import dispatch, run
from derts.data import open_store, save_table
from derts.errors import DertsError

TRAIN = [
    "--tasks.way", "3", "--tasks.shot", "2", "--tasks.query", "3", "--updates", "30",
    "--meta-batch", "4", "--strategy.name", "derts", "--strategy.warmup", "4", "--strategy.pool",
    "24", "--strategy.select", "greedy", "--evaluation.tasks", "20", "--evaluation.query", "4",
    "--quiet",
]  # fmt: skip


def newsgroups(topics: int = 20, each: int = 24, words: int = 200) -> tuple[Any, Any]:
    """tf-idf rows [n, words], sparse, of texts of about sixty words; and the topics' names."""
    random = np.random.default_rng(0)
    common = random.dirichlet(np.ones(words))
    own = random.dirichlet(np.full(words, 0.05), topics)
    counts = np.concatenate(
        [random.multinomial(60, 0.5 * (topic + common), size=each) for topic in own]
    )
    rows = counts * np.log(len(counts) / (1 + (counts > 0).sum(0)))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert (rows == 0).mean() > 0.5
    return rows, np.array([f"alt.topic{n // each}" for n in range(len(rows))])


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A matrix with a tenth of its labels wrong, a store of it, and a run on that."""
    place = tmp_path_factory.mktemp("features")
    rows, true = newsgroups()
    wrong = np.arange(0, len(rows), 10)
    given = true.copy()
    given[wrong] = np.roll(true, 24)[wrong]  # the topic before
    names = [f"post {n}" for n in range(len(rows))]
    np.savez(place / "news.npz", features=rows, labels=given, names=names)
    np.savez(place / "unlabelled.npz", features=rows)
    np.savez(place / "support.npz", features=rows[: 4 * 24], labels=true[: 4 * 24])
    assert run(["data", "prepare", str(place / "news.npz"), str(place / "store")]) == 0
    words = ["train", "--data", str(place / "store"), "--model.backbone", "linear"]
    assert run([*words, *TRAIN, "--out", str(place / "run")]) == 0
    return place


def test_a_run_on_features_learns_and_reports_names(folder: Path) -> None:
    result = json.loads((folder / "run" / "result.json").read_text())
    assert result["accuracy"] > 60
    assert result["item_shape"] == [200]
    (note,) = [one for one in result["notes"] if "class means without training reach" in one]
    assert "made it better" in note or "did not make it better" in note
    assert run(["report", str(folder / "run"), "--out", str(folder / "page.html")]) == 0
    page = (folder / "page.html").read_text()
    assert '<span class="name' in page
    assert "alt.topic" in page
    assert "atlas {" not in page


@pytest.mark.parametrize("looked_at", ["file", "store", "run"])
def test_inspect_and_clean(
    folder: Path, tmp_path: Path, looked_at: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = {"file": "news.npz", "store": "store", "run": "run"}[looked_at]
    where = [str(folder / source)]
    where = where if looked_at == "run" else ["--features", *where]
    assert run(["inspect", *where, "--out", str(tmp_path / "look"), "--quiet"]) == 0
    assert "labels look wrong" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "look").iterdir()} == {
        "rows.csv", "classes.csv", "review.html",
    }  # fmt: skip
    listed = table(tmp_path / "look" / "rows.csv")
    first = [int(row["path"].removeprefix("post ")) for row in listed[:20]]
    assert sum(number % 10 == 0 for number in first) >= 18
    assert '"picture":' not in (tmp_path / "look" / "review.html").read_text()
    review = tmp_path / "review.csv"
    first_path, split = listed[0]["path"], listed[0]["split"]
    review.write_text(f"path,split,decision,new class\n{first_path},{split},drop,\n")
    words = ["clean", *where, str(tmp_path / "clean"), "--quiet", "--drop", "--apply", str(review)]
    assert run(words) == 0
    assert ("derts data prepare the file" in capsys.readouterr().out) == (looked_at == "file")
    changed = table(tmp_path / "clean" / "changes.csv")
    assert changed[0]["path"] == listed[0]["path"]
    left = sum(map(len, open_store(tmp_path / "clean").values()))
    assert left == len(listed) - len(changed)


@pytest.mark.parametrize("exported", [False, True])
def test_predict_by_rows_with_labels(folder: Path, tmp_path: Path, exported: bool) -> None:
    model = folder / "run"
    if exported:
        model = tmp_path / "model.safetensors"
        assert run(["export", str(folder / "run"), str(model)]) == 0
    words = ["predict", str(model), "--support", str(folder / "support.npz"), "--query"]
    out = tmp_path / "labels.csv"
    assert run([*words, str(folder / "unlabelled.npz"), "--out", str(out), "--quiet"]) == 0
    found = table(out)
    assert found[0]["row"] == "row 0"
    _, true = newsgroups()
    of_these = zip(found[: 4 * 24], true, strict=False)
    assert np.mean([row["label"] == name for row, name in of_these]) > 0.9
    assert not out.with_suffix(".png").exists()


def test_a_store_of_features_as_support(folder: Path, tmp_path: Path) -> None:
    out, rows = tmp_path / "labels.csv", str(folder / "unlabelled.npz")
    words = ["predict", str(folder / "run"), "--support", str(folder / "store"), "--query", rows]
    assert run([*words, "--out", str(out), "--quiet"]) == 0
    found, (_, true) = [row["label"] for row in table(out)], newsgroups()
    assert np.mean([one == name for one, name in zip(found, true, strict=True)]) > 0.6


def test_arrays_by_class_name(folder: Path) -> None:
    rows, true = newsgroups()
    model = derts.load_model(folder / "run")
    classifier = model.adapt(
        {name: rows[true == name][:5] for name in ("alt.topic2", "alt.topic7")}
    )
    found = classifier.predict(rows[true == "alt.topic7"])
    assert np.mean([one.label == "alt.topic7" for one in found]) > 0.9


def test_a_run_on_features_resumes_and_evaluates(folder: Path) -> None:
    words = ["train", "--resume", str(folder / "run"), "--quiet", "--updates"]
    assert run([*words, "31"]) == 0
    assert run(["evaluate", str(folder / "run")]) == 0


def test_known_errors(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "corrupt", str(folder / "store"), str(tmp_path / "bad"), "--rate", "0.3"]
    assert run(words) == 0
    words = ["inspect", "--features", str(tmp_path / "bad"), "--score", "--quiet"]
    assert run([*words, "--out", str(tmp_path / "look")]) == 0
    assert "average precision 0." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "run", "--support", "narrow.npz", "--query", "news.npz"], "7 features a row"),
        (["predict", "run", "--support", "nan.npz", "--query", "news.npz"], "has nan in column 0"),
        (["predict", "run", "--support", "images", "--query", "news.npz"], "images holds images"),
        (["predict", "run", "--support", "thin", "--query", "news.npz"], "3 features a row"),
        (["predict", "run", "--support", ".", "--query", "news.npz"], "give a .npz, .npy or"),
        (["predict", "run", "--support", "unlabelled.npz", "--query", "news.npz"], "no labels"),
        (["predict", "run", "--support", "one.npz", "--query", "news.npz"], "1 classes"),
        (["inspect", "--features", "one.npz", "--quiet"], "two classes"),
        (["inspect", "--features", "nan.npz", "--quiet"], "has nan in column 0"),
        (["inspect", "run", "--features", "news.npz"], "either a run or --features"),
        (["inspect"], "either a run or --features"),
        (["clean", "run"], "give DEST"),
        (["train", "--data", "store"], "cnn4 takes images, and this data is features"),
        (["train", "--data", "glyphs", "--model.backbone", "mlp"], "mlp takes features"),
        (["train", "--data", "news.npz"], "derts data prepare"),
        (["data", "prepare", "glyphs", "x", "--labels", "y.csv"], "--labels is for"),
    ],
)
def test_bad_input_is_one_line(
    folder: Path,
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows, labels = newsgroups()
    np.savez(folder / "narrow.npz", features=rows[:, :7], labels=labels)
    np.savez(folder / "nan.npz", features=np.where(rows == 0, np.nan, rows), labels=labels)
    np.savez(folder / "one.npz", features=rows, labels=["a"] * len(rows))
    images = derts.ImageTable(torch.zeros(2, 4, 4, 1).byte(), torch.arange(2), ("a", "b"))
    thin = derts.FeatureTable(torch.eye(3), torch.tensor([0, 0, 1]), ("a", "b"))
    for name, item in (("images", images), ("thin", thin)):
        save_table({"train": item}, folder / name, overwrite=True)
    monkeypatch.chdir(folder)
    capsys.readouterr()
    assert run(words) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert message in said[0]


def test_no_model_is_blamed_where_none_was_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = np.arange(80) % 4
    np.savez(tmp_path / "clean.npz", X=np.eye(4, dtype=np.float32)[labels], y=labels)
    where = ["--features", str(tmp_path / "clean.npz"), "--out", str(tmp_path)]
    assert run(["inspect", *where, "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "0.0% of 80 labels look wrong" in said
    assert "overfitted" not in said


def test_a_store_of_images_is_no_features(tmp_path: Path) -> None:
    images = derts.ImageTable(torch.zeros(2, 4, 4, 1).byte(), torch.arange(2), ("a", "b"))
    save_table({"train": images}, tmp_path / "store")
    with pytest.raises(DertsError, match="a store of images"):
        dispatch(["inspect", "--features", str(tmp_path / "store")])
