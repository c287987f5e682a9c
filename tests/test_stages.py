"""Each stage knows only those before it, and what has a name has it alone."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "derts"
# evaluation needs no more than learners, and training asks for it
STAGES = [
    "data", "tasks", "models kernels", "learners", "evaluation", "gradients", "labels",
    "facility_location", "selection", "training", "report", "predict", "paper", "commands",
]  # fmt: skip
STAGE = {name: number for number, names in enumerate(STAGES) for name in names.split()}


def imported(file: Path) -> Iterator[str]:
    """The stages that a file imports from, other than for its types."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If):  # TYPE_CHECKING
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.ImportFrom) and (inner.module or "").startswith("derts."):
                yield str(inner.module).split(".")[1]


@pytest.mark.parametrize("stage", STAGE)
def test_no_stage_knows_a_later_one(stage: str) -> None:
    files = [*(SOURCE / stage).rglob("*.py"), *SOURCE.glob(f"{stage}.py")]
    assert files
    for file in files:
        later = [name for name in imported(file) if STAGE.get(name, -1) > STAGE[stage]]
        assert not later, f"{file.relative_to(SOURCE)} imports {', '.join(later)}"


def test_no_two_classes_have_the_same_name() -> None:
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in SOURCE.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    twice = {name for name, count in Counter(node.name for node in nodes).items() if count > 1}
    assert not twice - {"ClassifierMixin"}  # stands in where scikit-learn is not installed
