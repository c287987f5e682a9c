"""Result files, and tables made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "results"
Rows = list[tuple[str, ...]]
Values = dict[str, Any]


def read(name: str) -> Values:
    """A result file."""
    content: Values = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return content
