"""Input made to do harm: it is refused, or does none."""

import functools
import hashlib
import importlib
import io
import json
import operator
import os
import pickle
import shutil
import signal
import socket
import struct
import subprocess
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from derts.cli import run
from derts.data import open_store
from derts.data import prepare as make_store
from derts.data.safe_pickle import load_pickle
from derts.data.store import item_names, verify_store
from derts.errors import DertsError
from derts.facility_location import Selection
from derts.model_files import load_model
from derts.tasks import TaskPool
from derts.training.checkpoint import MAGIC, load_checkpoint
from derts.training.run_folder import Run


class Call:
    """Pickles as a call of any function."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


def tricks(marker: Path) -> dict[str, bytes]:
    """Pickles that would touch a file if anything in them were run."""
    touch = f"touch {marker}"

    def stack_global(module: str, name: str, argument: bytes) -> bytes:
        text = b"".join(b"\x8c" + bytes([len(t)]) + t.encode() for t in (module, name))
        return b"\x80\x04" + text + b"\x93" + argument + b"\x85R."

    short = b"\x8c" + bytes([len(touch)]) + touch.encode()
    python = f"open({str(marker)!r}, 'w')"
    return {
        "os.system": pickle.dumps(Call(os.system, (touch,))),
        "open": pickle.dumps(Call(open, (str(marker), "w"))),
        "copy": pickle.dumps(Call(shutil.copy, ("/etc/hostname", str(marker)))),
        "Path.touch": pickle.dumps(Call(Path.touch, (marker,))),
        "torch.load": pickle.dumps(Call(torch.load, (str(marker),))),
        "socket": pickle.dumps(Call(socket.create_connection, (("127.0.0.1", 9),))),
        "os.system, protocol 0": f"cos\nsystem\n(S'{touch}'\ntR.".encode(),
        "inst": f"(S'{touch}'\nios\nsystem\n.".encode(),
        "obj": f"(cos\nsystem\nS'{touch}'\no.".encode(),
        "newobj": f"\x80\x02csubprocess\nPopen\nS'{touch}'\n\x85\x81.".encode("latin-1"),
        "eval": pickle.dumps(Call(eval, (python,))),
        "exec": pickle.dumps(Call(exec, (python,))),
        "Popen": pickle.dumps(Call(subprocess.Popen, (["touch", str(marker)],))),
        "partial": pickle.dumps(Call(functools.partial, (os.system, touch))),
        "attrgetter": pickle.dumps(operator.attrgetter("system")),
        "import_module": pickle.dumps(Call(importlib.import_module, ("antigravity",))),
        "getattr": b"cbuiltins\ngetattr\n(S'a'\nS'upper'\ntR.",
        "nested": pickle.dumps([np.zeros(3), {"a": Call(os.system, (touch,))}]),
        "numpy.load": stack_global("numpy", "load", short),
        "numpy.f2py": b"cnumpy.f2py.diagnose\nrun_command\n(S'id'\ntR.",
        "numpy testing": b"cnumpy.testing._private.utils\nrunstring\n(S'1'\n}tR.",
        "dotted": stack_global("numpy", "ndarray.tofile", short),
        "dotted codecs": stack_global("_codecs", "encode.__globals__", short),
        "calls ndarray": b"cnumpy\nndarray\n(I1000000000000\ntR.",
        "codec": b"c_codecs\nencode\n(S'a'\nS'zip'\ntR.",
        "persistent id": b"Pid\n.",
        "binary persistent id": b"\x80\x02K\x01Q.",
        "extension 1": b"\x80\x02\x82\x01.",
        "extension 2": b"\x80\x02\x83\x01\x00.",
        "extension 4": b"\x80\x02\x84\x01\x00\x00\x00.",
        "build on a list": b"]}S'append'\nI1\nsb.",
        "build on a class": b"ccollections\nOrderedDict\n}S'x'\nI1\nsb.",
        "structured dtype": pickle.dumps(np.zeros(2, dtype=[("a", "i4")])),
        "dtype by evaluation": b"cnumpy\ndtype\n(S'f4,(2,3)f8'\ntR.",
        "a path": pickle.dumps(Path("a")),
        "state by setstate": pickle.dumps(Call(Call, (), {"reduced": ()})),
    }


@pytest.mark.parametrize("trick", tricks(Path("x")))
@pytest.mark.parametrize("form", ["pickle", "checkpoint", "checkpoint in a zip"])
def test_a_pickle_with_a_trick_is_refused_and_runs_nothing(
    form: str, trick: str, tmp_path: Path
) -> None:
    marker, path = tmp_path / "executed", tmp_path / "update-0000001.ckpt"
    content = tricks(marker)[trick]
    if form == "checkpoint in a zip":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("archive/data.pkl", content)
            archive.writestr("archive/version", "3\n")
        content = buffer.getvalue()
    if form != "pickle":  # with a right checksum
        content = MAGIC + hashlib.sha256(content).hexdigest().encode() + b"\n" + content
    path.write_bytes(content)
    with pytest.raises(DertsError) as caught:
        (load_pickle if form == "pickle" else load_checkpoint)(path)
    assert not marker.exists()
    assert form == "pickle" or "damaged or not one of ours" in str(caught.value)


def photos(folder: Path, classes: int = 5) -> Path:
    for number in range(classes):
        (folder / f"class-{number}").mkdir(parents=True)
        for copy in range(2):
            Image.new("RGB", (9, 9)).save(folder / f"class-{number}" / f"{copy}.png")
    return folder


def huge_png(side: int) -> bytes:
    """A PNG of `side` × `side` pixels in a few kilobytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    squeezed = zlib.compress(bytes(1_000_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", squeezed)


@pytest.mark.parametrize("side", [20_000, 2_000_000_000])
def test_an_image_bomb_is_named_and_not_unpacked(side: int, tmp_path: Path) -> None:
    bomb = photos(tmp_path / "photos") / "class-2" / "bomb.png"
    bomb.write_bytes(huge_png(side))
    with pytest.raises(DertsError, match=r"bomb\.png.*--skip-broken"):
        make_store(tmp_path / "photos", tmp_path / "store", size=16)
    make_store(tmp_path / "photos", tmp_path / "store", size=16, skip_broken=True)
    assert sum(map(len, open_store(tmp_path / "store").values())) == 10


def test_loops_of_links_end(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    (folder / "class-0" / "again").symlink_to(folder)
    (folder / "itself").symlink_to(folder / "itself")
    (folder / "up").symlink_to(tmp_path)
    (folder / "class-1" / "self.png").symlink_to(folder / "class-1" / "self.png")
    with pytest.raises(DertsError, match=r"self\.png"):
        make_store(folder, tmp_path / "store", size=16)
    make_store(folder, tmp_path / "store", size=16, skip_broken=True)
    assert sum(map(len, open_store(tmp_path / "store").values())) == 10


def test_a_pipe_among_the_images_does_not_hang(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos")
    os.mkfifo(folder / "class-1" / "pipe.png")
    with pytest.raises(DertsError, match=r"pipe\.png"):
        make_store(folder, tmp_path / "store", size=16)


def test_postscript_is_not_handed_to_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may write files, and loop for ever."""
    folder = photos(tmp_path / "photos")
    marker = tmp_path / "written"
    monkeypatch.setattr(subprocess, "check_call", lambda *_, **__: marker.touch())
    script = (
        f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n({marker}) (w) file\n"
    )
    (folder / "class-1" / "photo.png").write_text(script)
    words = ["data", "prepare", str(folder), str(tmp_path / "store"), "--size", "16"]
    assert run(words) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "preparing" not in line]
    assert len(lines) == 1
    assert "class-1/photo.png" in lines[0]
    assert "not an image of a known format" in lines[0]
    assert not marker.exists()


def test_names_that_a_terminal_would_obey_are_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = photos(tmp_path / "photos")
    (folder / "class-1" / "a\x1b[2J\nderts: all is well\r.png").write_bytes(b"broken")
    assert run(["data", "prepare", str(folder), str(tmp_path / "store"), "--size", "16"]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "preparing" not in line]
    assert len(lines) == 1
    assert lines[0].isprintable()
    assert "\\x1b[2J" in lines[0]


@pytest.mark.parametrize(
    "name", ["../outside.png", "/etc/hostname", "sub/../../../outside.png", "link.png"]
)
def test_a_csv_that_names_a_path_outside_is_refused(name: str, tmp_path: Path) -> None:
    images = tmp_path / "mini" / "images"
    images.mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(tmp_path / "outside.png")
    Image.new("RGB", (9, 9)).save(images / "a.png")
    (images / "link.png").symlink_to(tmp_path / "outside.png")
    for split in ("train", "val", "test"):
        rows = f"filename,label\na.png,cat\n{name},dog\n"
        (tmp_path / "mini" / f"{split}.csv").write_text(rows)
    if name == "link.png":  # a link that the folder's owner made is their word, not the csv's
        make_store(tmp_path / "mini", tmp_path / "store", size=16)
        return
    with pytest.raises(DertsError, match=r"outside of images/"):
        make_store(tmp_path / "mini", tmp_path / "store", size=16)
    assert not (tmp_path / "store").exists()


def test_an_archive_that_names_paths_outside_writes_nothing_there(tmp_path: Path) -> None:
    folder = tmp_path / "mini"
    folder.mkdir()
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(4, np.uint8))
    for split in ("train", "val", "test"):
        with zipfile.ZipFile(folder / f"{split}.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            for name in ("../../evil", "/tmp/evil", "data"):
                archive.writestr(f"{name}.npy", buffer.getvalue())
    with pytest.raises(DertsError, match="has no array 'offsets'"):
        make_store(folder, tmp_path / "store", size=16)
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.parametrize("name", ["../evil", "a/b", "", ".", "x\0y", "CON:", "é"])
def test_a_store_whose_split_names_lead_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    make_store(photos(tmp_path / "photos"), tmp_path / "store", size=16)
    path = tmp_path / "store" / "store.json"
    content = json.loads(path.read_text())
    content["splits"][name] = content["splits"].pop("train")
    path.write_text(json.dumps(content))
    with pytest.raises(DertsError, match="is damaged"):
        open_store(tmp_path / "store")


NESTED = {
    "result.json": "[" * 100_000,
    "events.jsonl": '{"a":' * 100_000,
    "config.toml": f"data = {'[' * 50_000}",
    "config.toml ": f"data.{'a.' * 2_000}a = 1",
}


@pytest.mark.parametrize("name", NESTED)
def test_a_run_with_a_nested_file_hides_no_other_run(
    name: str,
    finished_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    attempt: Callable[[list[str]], tuple[int, str]],
) -> None:
    shutil.copytree(finished_run, tmp_path / "bad")
    shutil.copytree(finished_run, tmp_path / "good")
    (tmp_path / "bad" / name.strip()).write_text(NESTED[name])
    assert run(["runs", str(tmp_path)]) == 0
    assert f"{tmp_path / 'good'}" in capsys.readouterr().out
    for words in (["compare"], ["report", "-o", str(tmp_path / "page.html")], ["evaluate"]):
        attempt([words[0], str(tmp_path / "bad"), *words[1:]])
    if not name.startswith("events"):
        with pytest.raises(DertsError, match="nested too deeply"):
            Run.open(tmp_path / "bad").result()


@pytest.mark.parametrize("name", ["result.json", "events.jsonl"])
def test_a_run_with_a_pipe_or_a_locked_file_hides_no_other_run(
    name: str,
    finished_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(finished_run, tmp_path / "bad")
    shutil.copytree(finished_run, tmp_path / "good")
    (tmp_path / "bad" / name).unlink()
    os.mkfifo(tmp_path / "bad" / name)
    assert run(["runs", str(tmp_path)]) == 0
    assert f"{tmp_path / 'good'}" in capsys.readouterr().out
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.parent == tmp_path / "bad":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    shutil.copy(finished_run / name, tmp_path / "file")
    (tmp_path / "bad" / name).unlink()
    shutil.move(tmp_path / "file", tmp_path / "bad" / name)
    assert run(["runs", str(tmp_path)]) == 0
    assert "cannot be read" in capsys.readouterr().out


@pytest.fixture
def soon() -> Iterator[None]:
    """Who waits for a pipe is told so."""

    def wake(*_: object) -> None:
        raise BaseException("it waits")

    before = signal.signal(signal.SIGALRM, wake)
    signal.alarm(15)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_a_pipe_in_place_of_a_file_of_a_store_is_refused(
    store: Path, tmp_path: Path, soon: None, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("store.json", "train.npy", "train_labels.npy", "train_names.json"):
        folder = tmp_path / name
        shutil.copytree(store, folder)
        (folder / name).unlink()
        os.mkfifo(folder / name)
        assert run(["data", "verify", str(folder)]) == 2
        assert "not a regular file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["data.json", "events.jsonl", "result.json", ".lock", "checkpoints/update-0000002.ckpt"]
)
def test_a_run_with_a_pipe_is_not_resumed(
    name: str, finished_run: Path, tmp_path: Path, soon: None, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished_run, tmp_path / "run")
    (tmp_path / "run" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "run" / name)
    assert run(["train", "--resume", str(tmp_path / "run"), "--updates", "3"]) == 2
    assert "not a regular file" in capsys.readouterr().err


def test_names_that_were_changed_are_seen(store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "store")
    names = tmp_path / "store" / "train_names.json"
    verify_store(tmp_path / "store")
    names.write_text(names.read_text().replace(".png", ".gif", 1))
    for read in (verify_store, lambda place: item_names(place, "train")):
        with pytest.raises(DertsError, match=r"train_names.json differs from its checksum"):
            read(tmp_path / "store")
    names.unlink()
    with pytest.raises(DertsError, match=r"train_names.json cannot be read"):
        verify_store(tmp_path / "store")


def test_nested_files_elsewhere_are_refused(store: Path, tmp_path: Path) -> None:
    deep = "[" * 100_000
    shutil.copytree(store, tmp_path / "store")
    (tmp_path / "store" / "train_names.json").write_text(deep)
    with pytest.raises(DertsError, match="nested too deeply"):
        item_names(tmp_path / "store", "train")
    (tmp_path / "store" / "store.json").write_text(deep)
    with pytest.raises(DertsError, match="nested too deeply"):
        open_store(tmp_path / "store")
    (tmp_path / "selection.json").write_text(deep)
    with pytest.raises(DertsError, match="is not a selection"):
        Selection.load(tmp_path / "selection.json")
    tensors = {"x": torch.zeros(1)}
    save_file(tensors, tmp_path / "model", {"derts": "derts-model-1", "card": deep})
    with pytest.raises(DertsError, match="nested too deeply"):
        load_model(tmp_path / "model")
    save_file(tensors, tmp_path / "model", {"derts": "derts-model-1", "card": "-1"})
    with pytest.raises(DertsError, match="is no model"):
        load_model(tmp_path / "model")
    save_file(tensors, tmp_path / "pool", {"way": "2", "recipe": deep})
    with pytest.raises(DertsError, match="nested too deeply"):
        TaskPool.load(tmp_path / "pool")
