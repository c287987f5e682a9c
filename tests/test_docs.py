"""The documentation runs: Python as doctests (pytest collects them), commands here.

The Python of docs/own-data.md uses what its commands made, so it runs here too.
"""

from __future__ import annotations

import doctest
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from torch import nn

from derts.cli import COMMANDS, run
from derts.commands.completion import command_options
from derts.models.pretrained import Pretrained

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "research" / "log.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
HISTORY = {"CHANGELOG.md", "log.md", "moved.md"}  # these name what is gone, too
# words that the field has others for, and what options were called by them
OURS, OLD_NAMES = r"seen anew|by heart|\bmend(?:ed|ing)\b|change places", r"\bturned\b|\bdoubt"
# what makes a command of the documentation quick enough for a test
QUICK = {
    "data prepare": ["--size", "32", "--workers", "1", "--overwrite"],
    "train": [
        "--updates", "3", "--meta-batch", "2", "--model.width", "4", "--strategy.warmup", "1",
        "--strategy.pool", "20", "--evaluation.tasks", "5", "--evaluation.query", "3", "--quiet",
    ],
    "inspect": ["--quiet"],
    "clean": ["--quiet"],
}  # fmt: skip


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, content) of every fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def commands(page: Path) -> list[list[str]]:
    """Every derts command in a page's blocks, as words."""
    lines = [line for language, text in blocks(page) if not language for line in text.splitlines()]
    starts = re.compile(r"(?:\.venv/bin/)?derts ")
    return [shlex.split(line, comments=True)[1:] for line in lines if starts.match(line)]


def name_of(words: list[str]) -> str:
    two = " ".join(words[:2])
    return two if two in COMMANDS else words[0]


@pytest.fixture(scope="module")
def options() -> dict[str, dict[str, list[str]]]:
    return command_options()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_are_doctests(page: Path) -> None:
    for language, text in blocks(page):
        assert language in ("", "python"), f"{page.name}: no test runs {language} blocks"
        if language == "python":
            assert text.startswith(">>> "), f"{page.name}: pytest would not run\n{text}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in HISTORY],
                         ids=lambda page: page.name)  # fmt: skip
def test_commands_and_options_exist(page: Path, options: dict[str, dict[str, list[str]]]) -> None:
    text = page.read_text(encoding="utf-8")
    inline = [
        shlex.split(found.replace("\n", " ")) for found in re.findall(r"`derts ([^`…]+)`", text)
    ]
    for words in [*commands(page), *inline]:
        name = name_of(words)
        group = any(known.startswith(f"{name} ") for known in COMMANDS)
        assert name in COMMANDS or group or name.startswith("--"), f"{page.name}: derts {words}"
        for word in words:
            if word.startswith("--") and name in COMMANDS:
                assert word.split("=")[0] in options[name], f"{page.name}: {name} has no {word}"


OPTION = re.compile(r"(?<![\w-])--[a-z][\w.-]*\w")
OF_OTHERS = {"--version", "--error-unmatch", "--porcelain", "--nproc-per-node", "--head"}


def test_options_that_messages_advise_exist(options: dict[str, dict[str, list[str]]]) -> None:
    known = {name for names in options.values() for name in names}
    groups = {name.partition(".")[0] for name in known}
    texts = [(ROOT / "docs" / "moved.md", now_column())]
    texts += [(file, file.read_text(encoding="utf-8")) for file in (ROOT / "src").rglob("*.py")]
    for file, text in texts:
        for word in OPTION.findall(text):
            switch = word.replace(".no-", ".")
            found = {word, switch} & (known | groups) or word in OF_OTHERS
            assert found, f"{file.name} names {word}, which is no option"


def now_column() -> str:
    """What the options of moved.md are called now."""
    text = (ROOT / "docs" / "moved.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.partition("## Behaviour")[0].splitlines()]
    return "\n".join(row[2] for row in rows if len(row) > 3)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: no {target}"


NAMED = re.compile(
    r"(?<![:\w/])(?:src/derts|tests|benchmarks|research|docs|selection|labels)/[\w/-]+\.(?:py|md)\b"
)


def test_files_that_pages_and_docstrings_name_are_there() -> None:
    pages = [page for page in PAGES if page.name not in HISTORY]
    for file in [*pages, *(ROOT / "src").rglob("*.py")]:
        for name in NAMED.findall(file.read_text(encoding="utf-8")):
            found = (ROOT / name).exists() or (ROOT / "src" / "derts" / name).exists()
            assert found, f"{file.name} names {name}, which is not there"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", ["docs/own-data.md", "docs/wrong-labels.md", "README.md", "docs/index.md"]
)
def test_a_new_user_can_follow(
    page: str,
    photos: Path,
    in_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stand_in(weights: object) -> Pretrained:
        layers = nn.Sequential(nn.Conv2d(3, 16, 8, 8), nn.Flatten())
        return Pretrained("efficientnet-lite0", layers, 32, (127.0,) * 3, (128.0,) * 3)

    monkeypatch.setattr("derts.models.pretrained._lite0", stand_in)  # quick, and always there
    shutil.copytree(photos, in_folder / "my-photos")
    for name in ("letter-01", "letter-04", "letter-07"):
        (in_folder / "my-examples" / name).mkdir(parents=True)
        for number in range(3):
            shutil.copy(photos / name / f"{number:02d}.png", in_folder / "my-examples" / name)
    shutil.copytree(photos / "letter-04", in_folder / "inbox")
    (in_folder / "review.csv").write_text("path,split,class,decision,new class\n")
    followed = commands(ROOT / page)
    assert len(followed) >= 4
    for words in followed:
        if any(word.endswith(".onnx") for word in words):  # tests/test_onnx_file.py
            continue
        quick = list(QUICK.get(name_of(words), []))
        if name_of(words) == "data prepare" and page == "README.md":
            quick += ["--split-fractions", "0.5", "0.25", "0.25"]
        if name_of(words) == "train" and page == "README.md":
            quick += ["--tasks.way", "3", "--tasks.query", "5"]
        assert run([*words, *quick]) == 0, f"derts {words}: {capsys.readouterr().err}"
    made = {path.name for path in in_folder.rglob("*") if path.is_file()}
    if page == "docs/own-data.md":
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        failed, tried = doctest.testfile(str(ROOT / page), False, optionflags=flags)
        assert (failed, tried) == (0, 3), capsys.readouterr().out
        assert {"predictions.csv", "predictions.png", "report.html", "model.safetensors"} <= made


@pytest.mark.slow
def test_the_papers_experiments_can_be_followed(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the page says, but for built-in data in place of mini-ImageNet, and hardly any updates."""
    reproduce = [words for words in commands(ROOT / "docs/reproduce.md") if words[0] == "reproduce"]
    assert len(reproduce) == 5
    (in_folder / "results").symlink_to(ROOT / "results")
    assert run(reproduce[4]) == 0
    assert "Measured on: NVIDIA H200, in bfloat16." in capsys.readouterr().out
    for words in reproduce[:3]:  # the next, all of it, runs in tests/paper
        text = " ".join(words).replace("mini=stores/mini", "glyphs").replace("--preset gpu", "")
        small = [
            "--updates-scale",
            "0.0002",
            "--seeds",
            "1",
            "--only",
            "learner=protonet,strategy=derts",
        ]
        assert run([*text.split(), *small]) == 0, f"{text}: {capsys.readouterr().err}"
    assert list(in_folder.rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_in_prose_and_tables_exist(
    page: Path, options: dict[str, dict[str, list[str]]]
) -> None:
    if page.name in HISTORY:
        return
    known = {word for words in options.values() for word in words}
    text = page.read_text(encoding="utf-8")
    for option in re.findall(r"`(--(?:[a-z-]+\.)[a-z-]+)", text):
        assert option in known, f"{page.name}: no {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_use_the_fields_words_and_name_no_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "/work/" not in text
    invented = OURS if page.name in HISTORY else f"{OURS}|{OLD_NAMES}"
    assert not re.findall(invented, text), page.name


def test_so_does_the_source() -> None:
    for file in (ROOT / "src").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert not re.findall(f"{OURS}|{OLD_NAMES}", text), file


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:benchmarks|examples|results|tests|research)/[\w*./-]+)`", text):
        assert list(ROOT.glob(name)), f"{page.name}: no {name}"


def test_the_way_of_an_image_names_what_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|`]+ \| (`.+`) \| (`.+`) \|$", text, re.M)
    assert len(rows) > 10
    for names, files in rows:
        found = [re.findall(r"`([^`]+)`", part) for part in (names, files)]
        for name, file in zip(*found, strict=True):
            source = (ROOT / "src/derts" / file).read_text(encoding="utf-8")
            assert re.search(rf"(?:def|class) {name}\b", source), f"no {name} in {file}"


def test_readme_and_log_are_short() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.split()) <= 700
    assert "make demo" in readme
    assert "make test" in readme
    for entry in (ROOT / "research/log.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, *lines = entry.strip().splitlines()
        assert len(lines) <= 8, heading


def test_every_page_is_on_the_site() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r": ([\w-]+\.md)$", site, re.M)
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_version_is_the_same_everywhere() -> None:
    from derts import __version__

    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["hatch"]["version"]["path"] == "src/derts/__init__.py"


def test_workflows_run_the_versions_that_the_package_names() -> None:
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    tests = (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    assert re.findall(r"python-version: (\[.*\])", tests) == [str(named).replace("'", '"')]


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings")),
    reason="the site's programs are not installed: pip install 'derts[docs]'",
)
@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q"]
    command += ["-f", str(ROOT / "mkdocs.yml"), "-d", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "derts.ImageTable" in (tmp_path / "site" / "api" / "index.html").read_text()
