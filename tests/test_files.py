"""Files that are whole or not there, and text that stays text on a page."""

import os
from pathlib import Path
from typing import Any

import pytest

from derts.files import write_atomically
from derts.report.tables import html_table


def test_a_file_is_on_the_disk_before_it_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(handle: int) -> None:
        steps.append("sync")
        fsync(handle)

    def noted_replace(path: Path, target: Path) -> Any:
        steps.append(f"{path.name != target.name} {path.read_bytes().decode()}")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    write_atomically(tmp_path / "a", b"new")
    assert steps == ["sync", "True new", "sync"]  # the file, its name, the folder


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_cells_of_a_page_are_text() -> None:
    assert "<b>" not in html_table([("<b>",), ("<b>x</b>",)])
