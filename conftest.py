"""Modules that only a GPU machine can import are not searched for examples elsewhere."""

import importlib.util
import re
from pathlib import Path

SOURCES = {
    file: file.read_text(encoding="utf-8")
    for file in (Path(__file__).parent / "src").rglob("*.py")
    if not importlib.util.find_spec("triton")
}
KERNELS = {file.stem for file, text in SOURCES.items() if "\nimport triton\n" in text}
IMPORTS = re.compile(rf"^(import triton|from derts\..*\b({'|'.join(KERNELS)})\b)", re.M)
collect_ignore = [str(file) for file, text in SOURCES.items() if IMPORTS.search(text)]
