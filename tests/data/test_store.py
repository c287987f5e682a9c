"""Stores: what is written comes back, and what is wrong with one is named."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from derts.cli import run
from derts.data import ImageTable, describe_store, open_data, open_store, save_table, verify_store
from derts.errors import DertsError
from tests.tiny import TINY_WORDS


@pytest.fixture
def store(tmp_path: Path) -> Path:
    images = torch.arange(6 * 8 * 8 * 3, dtype=torch.float32).to(torch.uint8).reshape(6, 8, 8, 3)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    table = ImageTable(images, labels, ("a", "b", "ç"), "train", ("x", "x", "y"))
    save_table({"train": table, "val": table}, tmp_path / "store")
    return tmp_path / "store"


def test_round_trip(store: Path) -> None:
    tables = open_store(store)
    assert list(tables) == ["train", "val"]
    val = tables["val"]
    assert (val.split, val.class_names, val.categories) == ("val", ("a", "b", "ç"), ("x", "x", "y"))
    assert val.items.sum() > 0
    again = save_table(tables, store.with_name("again"))
    assert again.splits == describe_store(store).splits
    assert verify_store(store).bytes == 2 * 6 * 8 * 8 * 3
    assert "3 classes of 2, 2 super-categories" in describe_store(store).lines()[1]


def test_writing_to_a_table_leaves_the_file_alone(store: Path) -> None:
    open_store(store)["train"].items.zero_()
    assert verify_store(store).bytes == 2 * 6 * 8 * 8 * 3
    assert int(open_store(store)["train"].items.sum()) > 0


def test_open_data(store: Path, tmp_path: Path) -> None:
    assert open_data(store, device="cpu")["train"].device.type == "cpu"
    with pytest.raises(DertsError, match=r"device \w+ cannot be used .* try auto or cpu"):
        open_data(store, device="cuda" if not torch.cuda.is_available() else "nowhere")
    assert set(open_data(str(store))) == {"train", "val"}
    (tmp_path / "raw" / "a").mkdir(parents=True)
    with pytest.raises(DertsError, match="expected one of"):
        open_data(tmp_path / "raw")
    from PIL import Image

    Image.new("L", (4, 4)).save(tmp_path / "raw" / "a" / "x.png")
    with pytest.raises(DertsError, match=r"run derts data prepare .* DEST first"):
        open_data(tmp_path / "raw")


@pytest.mark.parametrize("name", ["val.npy", "val_labels.npy"])
def test_verify_names_what_differs(store: Path, name: str) -> None:
    content = bytearray((store / name).read_bytes())
    content[-8] ^= 3
    (store / name).write_bytes(content)
    with pytest.raises(DertsError, match=rf"{name} differs from its checksum: prepare it again"):
        verify_store(store)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def other_shape(path: Path) -> None:
    np.save(path, np.zeros((6, 9, 9, 3), np.uint8))


def pickled(path: Path) -> None:
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    ("damage", "name", "message"),
    [
        (Path.unlink, "val.npy", "val.npy is missing"),
        (truncate, "val.npy", "damaged"),
        (truncate, "val_labels.npy", "damaged"),
        (other_shape, "val.npy", "but store.json says"),
        (pickled, "val.npy", "damaged"),
        (Path.unlink, "store.json", "no store.json"),
        (truncate, "store.json", "damaged"),
    ],
)
def test_damage_is_named(
    store: Path, damage: Callable[[Path], None], name: str, message: str
) -> None:
    damage(store / name)
    with pytest.raises(DertsError, match=message):
        open_store(store)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.update(format="other"), "other version 1"),
        (lambda content: content.update(version=99), "version 99"),
        (lambda content: content.pop("splits"), "damaged"),
        (lambda content: content.update(left_out=float("inf")), "damaged"),
        (lambda content: content.update(splits=[]), "damaged"),
        (lambda content: content["splits"].update({"../x": {}}), "damaged"),
        (lambda content: content.pop("kind"), "damaged"),
        (lambda content: content["splits"]["val"].pop("sample_sha256"), "damaged"),
        (lambda content: content["splits"]["val"].pop("names_sha256"), "damaged"),
        (lambda content: content["splits"]["val"].update(shape=[8, 8]), "damaged"),
        (lambda content: content["splits"]["val"].update(count=7), "but store.json says"),
        (lambda content: content["splits"]["val"].update(classes=["a"], categories=None), "labels"),
    ],
)
def test_changed_json_is_named(
    store: Path, change: Callable[[dict[str, object]], None], message: str
) -> None:
    content = json.loads((store / "store.json").read_text(encoding="utf-8"))
    change(content)
    (store / "store.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DertsError, match=message):
        open_store(store)


def test_saving_refuses_what_it_should(store: Path, tmp_path: Path) -> None:
    tables = open_store(store)
    with pytest.raises(DertsError, match="--overwrite"):
        save_table(tables, store)
    save_table(tables, store, overwrite=True)
    verify_store(store)
    with pytest.raises(DertsError, match="split name"):
        save_table({"../x": tables["train"]}, tmp_path / "other")
    with pytest.raises(DertsError, match="no table"):
        save_table({}, tmp_path / "other")


def insert(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:200] + b"abc" + content[200:])


def shift(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:200] + b"abc" + content[200:-3])


def reorder(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"False", b"True ", 1))


@pytest.mark.parametrize(
    ("damage", "message"),
    [(insert, "bytes long"), (shift, "differs from its checksum"), (reorder, "another order")],
)
@pytest.mark.parametrize("small", [64_000_000, 1])
def test_bytes_put_into_an_array_are_seen_at_opening(
    store: Path,
    damage: Callable[[Path], None],
    message: str,
    small: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would move every image after them, and labels would still fit."""
    monkeypatch.setattr("derts.data.store._SMALL", small)
    open_store(store)
    damage(store / "val.npy")
    with pytest.raises(DertsError, match=rf"val.npy .*{message}"):
        open_store(store)


def test_a_store_that_is_half_written_is_none(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = open_store(store)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("derts.data.store_writing.finish_split", killed)
    with pytest.raises(KeyboardInterrupt):
        save_table(tables, tmp_path / "half")
    monkeypatch.undo()
    assert not (tmp_path / "half").exists()
    for file in sorted(store.iterdir()):  # a copy that stopped after any of the files
        (tmp_path / "copy").mkdir(exist_ok=True)
        (tmp_path / "copy" / file.name).write_bytes(file.read_bytes())
        if file != max(store.iterdir()):
            with pytest.raises(DertsError):
                open_store(tmp_path / "copy")
            assert run(["data", "info", str(tmp_path / "copy")]) == 2
    open_store(tmp_path / "copy")


WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
watched: list[str] = []
touched: list[str] = []


def _hear(event: str, details: tuple[object, ...]) -> None:
    """Notes whatever changes a file or folder below the watched one."""
    flags = details[2] if event == "open" and isinstance(details[2], int) else 0
    changes = event in ("os.mkdir", "os.rename", "os.remove", "os.truncate", "os.chmod", "os.utime")
    if watched and (changes or flags & WRITING) and watched[0] in repr(details[:2]):
        touched.append(f"{event} {details}")


def test_a_store_that_may_only_be_read_works(
    tmp_path: Path, letters: dict[str, ImageTable]
) -> None:
    """As on a read-only file system, which root can write to all the same."""
    place = tmp_path / "elsewhere" / "store"
    save_table(letters, place)
    for file in place.iterdir():
        file.chmod(0o444)
    place.chmod(0o555)
    sys.addaudithook(_hear)
    watched.append(str(place))
    try:
        out = str(tmp_path / "run")
        assert run(["train", *TINY_WORDS, "--data", str(place), "--out", out]) == 0
        for words in (
            ["evaluate", out],
            ["data", "info", str(place)],
            ["data", "verify", str(place)],
        ):
            assert run(words) == 0
        assert not touched
        with pytest.raises((PermissionError, FileExistsError)) as _:
            (place / "store.json").open("x").close()  # the watch works
        assert touched
    finally:
        watched.clear()
        place.chmod(0o755)
