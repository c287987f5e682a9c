"""Shell completion: bash itself is asked what it would complete."""

import shutil
import subprocess
from pathlib import Path

import pytest

from derts.cli import COMMANDS, run

PROBE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); _derts; echo "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from derts.commands.completion import bash_script

    path = tmp_path_factory.mktemp("shell") / "derts.bash"
    path.write_text(bash_script())
    return path


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["derts", "repo"], ["report"]),
        (["derts", "data", "v"], ["verify"]),
        (["derts", "data", "prepare", "--min"], ["--min-images"]),
        (["derts", "train", "--strategy.n"], ["--strategy.name"]),
        (["derts", "report", "run"], []),
        (["derts", "train", "--strategy.name", "random"], ["random", "random-votes"]),
        (["derts", "train", "--preset", "paper-"], ["paper-noisy"]),
        (["derts", "train", "--learner.name", ""], ["protonet", "anil", "maml"]),
        (["derts", "train", "--model.backbone", "r"], ["resnet12"]),
        (["derts", "evaluate", "run", "--split", "v"], ["val"]),
        (["derts", "train", "--preset", "--strategy.na"], ["--strategy.name"]),
    ],
)
def test_bash_completes(script: Path, words: list[str], expected: list[str]) -> None:
    answer = subprocess.run(
        ["bash", "-c", PROBE, "bash", str(script), *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.split() == expected


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_every_option_is_known_however_wide_the_terminal(
    columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from derts.commands.completion import command_options
    from derts.config import TrainConfig
    from derts.config_file import as_values
    from derts.report.read import flat

    monkeypatch.setenv("COLUMNS", columns)
    known = set(command_options()["train"])
    assert {f"--{name.replace('_', '-')}" for name in flat(as_values(TrainConfig()))} <= known


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    shown = capsys.readouterr().out
    assert all(name.split()[-1] in shown for name in COMMANDS)
    assert "min-images" in shown
    assert "random-votes" in shown
