"""What reaches a terminal, or a spreadsheet, from data: text, and nothing that is obeyed."""

import csv
import io
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from derts.cli import main, run
from derts.data import item_names, open_store
from derts.errors import printable
from derts.files import csv_bytes, read_csv
from tests.tiny import TINY_WORDS

HOSTILE = ["\x1b[2Ja", "b\nderts: all is well", "\u202egnp.c", "=1+1", "-2+3", "'@d", "\re", "\tf"]
PLAIN = ["class 1", "class 2"]  # with them, ten: inspect prints no more
WORDS = [*TINY_WORDS, "--tasks.way", "2", "--evaluation.query", "1", "--updates", "2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos in folders of such names, a store of them, and a run on it."""
    found = tmp_path_factory.mktemp("terminal")
    random = np.random.default_rng(0)
    for name in [*HOSTILE, *PLAIN]:
        (found / "photos" / name).mkdir(parents=True)
        for number in range(4):
            picture = Image.fromarray(random.integers(0, 255, (20, 20, 3), np.uint8))
            picture.save(found / "photos" / name / f"=SUM(1)\x1b[2J{number}.png")
    words = ["prepare", str(found / "photos"), str(found / "store"), "--size", "16"]
    assert run(["data", *words, "--workers", "1"]) == 0
    shutil.copytree(found / "store", found / "store\nderts: all is well")
    store = json.loads((found / "store" / "store.json").read_text())
    store["origin"] = {"kind": "folders\x1b[2J", "name": "x\nderts: all is well\u202e"}
    (found / "store" / "store.json").write_text(json.dumps(store))
    out = found / "runs" / "a\x1b[2Jb"
    assert run(["train", *WORDS, "--data", str(found / "store"), "--out", str(out)]) == 0
    return found


@pytest.mark.parametrize(
    "command",
    ["data info", "data verify", "inspect", "predict", "runs", "compare", "clean", "report",
     "diagnose"],
)  # fmt: skip
def test_no_name_is_obeyed(
    command: str,
    folder: Path,
    in_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("derts.commands.labels.FIRST", 2)
    trained = str(folder / "runs" / "a\x1b[2Jb")
    words = {
        "data info": [str(folder / "store")],
        "data verify": [str(folder / "store\nderts: all is well")],
        "inspect": [trained, "--out", "inspect", "--quiet"],
        "predict": [trained, "--support", str(folder / "photos"),
                    "--query", str(folder / "photos" / HOSTILE[0])],
        "runs": [str(folder / "runs")],
        "compare": [trained],
        "clean": [trained, "cleaned", "--quiet"],
        "report": [trained, "--out", "a\x1b[2Jb.html"],
        "diagnose": [trained, "--pool", "8", "--draws", "2", "--quiet"],
    }  # fmt: skip
    capsys.readouterr()
    assert run([*command.split(), *words[command]]) == 0
    shown = capsys.readouterr()
    for line in (shown.out + shown.err).split("\n"):
        assert line.isprintable(), repr(line)
        assert not line.startswith("derts: all is well")
    if command not in ("compare", "clean"):
        assert any(mark in shown.out for mark in ("\\x1b[2J", "\\n", "\\u202e"))
    for file in in_folder.rglob("*.csv"):
        rows = read_csv(file)
        with file.open(newline="", encoding="utf-8") as stream:
            cells = [cell for row in csv.reader(stream) for cell in row]
        assert rows or command == "clean"
        assert not [cell for cell in cells if cell[:1] in ("=", "+", "-", "@", "\t", "\r")]


def test_a_file_that_the_system_refuses_is_named_escaped(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_folder / "a\x1b[2J.npy").mkdir()
    np.save("g.npy", np.eye(3))
    assert run(["select", "g.npy", "--k", "1", "--out", "a\x1b[2J.npy"]) == 2
    assert capsys.readouterr().err.rstrip("\n").isprintable()


def test_a_review_of_such_names_is_taken(folder: Path, tmp_path: Path) -> None:
    """As review.html saves it, quoted, and as earlier pages did, not quoted."""
    trained, table = folder / "runs" / "a\x1b[2Jb", open_store(folder / "store")["train"]
    target = next(name for name in table.class_names if name in HOSTILE)
    path = (item_names(folder / "store", "train") or [])[-1]
    rows = [
        ("path", "split", "class", "decision", "new class"),
        (path, "train", table.class_names[-1], "relabel", target),
    ]
    (tmp_path / "new.csv").write_bytes(csv_bytes(rows))
    with (tmp_path / "old.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    for name in ("new", "old"):
        words = [str(trained), str(tmp_path / name), "--apply", str(tmp_path / f"{name}.csv")]
        assert run(["clean", *words, "--quiet"]) == 0
        changed = read_csv(tmp_path / name / "changes.csv")
        assert [row["new class"] for row in changed] == [target]


@pytest.mark.parametrize("text", [*HOSTILE, "''=x", "'quoted", "a,b", 'say "x"', "", "+", "7"])
def test_what_is_quoted_for_a_spreadsheet_is_read_back(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(csv_bytes([("name", "other"), (text, "x")]))
    assert read_csv(tmp_path / "a.csv") == [{"name": text, "other": "x"}]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_output_that_is_not_utf_8(
    encoding: str, folder: Path, in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "runs" / "a\x1b[2Jb", "run")
    monkeypatch.setattr("derts.commands.labels.FIRST", 2)
    commands = (
        "--help", "train --help", "inspect run --quiet", "evaluate run", "runs .", "compare run",
        f"data info {folder / 'store'}", "report run", "train --tasks.way \u2500\udcff",
    )  # fmt: skip
    for command in commands:
        written = io.BytesIO()
        for name in ("stdout", "stderr"):
            stream = io.TextIOWrapper(written, encoding=encoding, write_through=True)
            monkeypatch.setattr(sys, name, stream)
        with pytest.raises(SystemExit) as stop:
            main(command.split())
        assert stop.value.code in (0, 2)
        shown = written.getvalue().decode(encoding)
        assert "----" in shown or command.split()[0] not in ("inspect", "runs", "compare")


def test_no_color_means_no_codes_at_all() -> None:
    script = """
from derts.cli import main, run
from derts.progress import progress
with progress("work", 4) as advance:
    advance(4)
run(["select", "--help"])
"""
    leader, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "NO_COLOR": "1", "TERM": "xterm-256color"},
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    shown = b""
    try:
        while part := os.read(leader, 4096):
            shown += part
    except OSError:  # the other side is closed
        pass
    assert process.wait(60) == 0
    assert b"usage: derts select" in shown
    assert b"work: 4/4" in shown
    assert b"\x1b" not in shown


def test_printable_is_one_line() -> None:
    assert printable("a\u2028b\x85\udcff") == "a\\u2028b\\x85\\udcff"


def test_what_is_said_of_rows_is_not_obeyed(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["a", "a", "a", "b", "b", "b", "\x1b[2Jalone"]
    rows = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    np.savez("rows.npz", features=rows, labels=names)
    assert run(["inspect", "--features", "rows.npz", "--out", "seen", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert "with one image cannot be judged: \\x1b[2Jalone" in shown.out
    assert (shown.out + shown.err).replace("\n", "").isprintable()
