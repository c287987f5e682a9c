"""What the tests with generated input share."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from derts.cli import run
from derts.data import ImageTable
from derts.data import prepare as make_store
from derts.training import train
from tests.tiny import tiny

Attempt = Callable[[list[str]], tuple[int, str]]


@pytest.fixture
def attempt(capsys: pytest.CaptureFixture[str]) -> Attempt:
    """Runs a command that may fail, but only in the one allowed way; its exit code and line."""

    def words_to_answer(words: list[str]) -> tuple[int, str]:
        capsys.readouterr()
        code = run(words)
        said = [
            line for line in capsys.readouterr().err.splitlines()
            if not line.startswith(("preparing: ", "training: ", "verifying: "))
        ]  # fmt: skip
        assert code in (0, 2)
        if code == 2:
            assert len(said) == 1, said
            assert said[0].startswith("derts: ")
            assert said[0].isprintable(), repr(said[0])
            return code, said[0]
        return code, ""

    return words_to_answer


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store that is as it should be."""
    folder = tmp_path_factory.mktemp("bad-input")
    for number in range(9):
        (folder / "photos" / f"class-{number}").mkdir(parents=True)
        for copy in range(4):
            image = Image.new("RGB", (20, 20), (number * 25, copy * 40, 128))
            image.save(folder / "photos" / f"class-{number}" / f"{copy}.png")
    make_store(folder / "photos", folder / "store", size=16, workers=1)
    return folder / "store"


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, letters: dict[str, ImageTable]) -> Path:
    """A run folder that is as it should be."""
    config = tiny(
        evaluation={"tasks": 5},
        strategy={"name": "derts", "warmup": 0, "pool": 8, "ratio": 0.3},
        updates=2,
        validate_every=1,
    )
    out = tmp_path_factory.mktemp("bad-input") / "run"
    train(config, out, tables=letters, quiet=True)
    return out
