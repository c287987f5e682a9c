"""derts demo --wrong-labels"""

from pathlib import Path

import pytest

from derts.cli import run
from derts.data import open_data

STORY = ["demo", "--wrong-labels", "--small", "--seeds", "1", "--updates", "20", "--quiet"]
STORY += ["--out", "story"]


def test_the_story_of_wrong_labels_runs_once_per_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(STORY) == 0
    said = capsys.readouterr().out
    commands = [line.split()[2:4] for line in said.splitlines() if line.startswith("$ derts")]
    assert [words[0] for words in commands] == [
        "data",
        "train",
        "inspect",
        "clean",
        *["train"] * 3,
        "compare",
    ]
    assert "random data=story/wrong-glyphs" in said
    assert "average precision" in said
    wrong, cleaned = (open_data(Path("story") / name) for name in ("wrong-glyphs", "clean-glyphs"))
    assert len(cleaned["train"]) <= len(wrong["train"])
    assert list(Path("story").rglob("review.html"))
    assert run(STORY) == 2
    assert "holds this demo already" in capsys.readouterr().err
