"""Which source made a result: its digest, its commit, and whether it is that commit's."""

import subprocess
from pathlib import Path

import pytest

import derts.provenance


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a recipe, in place of ours."""
    home = tmp_path / "package" / "provenance.py"
    (home.parent / "recipes").mkdir(parents=True)
    home.write_text("code")
    (home.parent / "recipes" / "common.toml").write_text("updates = 1")
    monkeypatch.setattr(derts.provenance, "__file__", str(home))
    return home.parent


def version() -> dict[str, str | bool]:
    return derts.provenance.code_version.__wrapped__()


def git(folder: Path, *words: str) -> None:
    names = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *names, *words], check=True, capture_output=True)


def test_the_code_is_known_by_its_recipes_too(package: Path) -> None:
    before = version()["source"]
    (package / "notes.txt").write_text("no code")
    assert version()["source"] == before
    (package / "recipes" / "common.toml").write_text("updates = 2")
    assert version()["source"] != before


def test_a_run_from_an_uncommitted_tree_says_so(package: Path) -> None:
    assert "no git checkout" in str(version()["note"])
    git(package, "init")
    assert "commit" not in version()  # of somebody else's project, as far as git knows
    git(package, "add", ".")
    git(package, "commit", "-m", "all")
    assert version()["dirty"] is False
    (package / "recipes" / "common.toml").write_text("updates = 2")
    assert version()["dirty"] is True
    assert len(str(version()["commit"])) == 40
