"""The kernels' operations in plain torch, from beside the program that compares the two."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def plain_operations() -> Any:
    path = Path(__file__).parents[2] / "benchmarks" / "plain_operations.py"
    spec = importlib.util.spec_from_file_location("plain_operations", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PlainOperations()
