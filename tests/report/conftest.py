"""A tiny comparison that all tests of the report share."""

from pathlib import Path

import pytest

from derts.cli import run


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `derts demo` leaves."""
    folder = tmp_path_factory.mktemp("demo")
    words = ["demo", "--small", "--seeds", "2", "--updates", "45", "--quiet"]
    assert run([*words, "--out", str(folder)]) == 0
    return folder
