"""Modules that only a GPU machine can import are not searched for examples elsewhere."""

import importlib.util
from pathlib import Path

collect_ignore = (
    []
    if importlib.util.find_spec("triton")
    else [
        str(file)
        for file in (Path(__file__).parent / "src").rglob("*.py")
        if "\nimport triton\n" in file.read_text(encoding="utf-8")
    ]
)
