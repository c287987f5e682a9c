"""For the site: docstrings are plain text with tables and doctests; make Markdown of them."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension


class PlainDocstrings(Extension):
    """Fences around examples and aligned columns; the rest is prose."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Called with each module, class, function and attribute that has been read."""
        if obj.docstring:
            paragraphs = re.split(r"\n\s*\n", obj.docstring.value)
            obj.docstring.value = "\n\n".join(map(as_markdown, paragraphs))


def as_markdown(paragraph: str) -> str:
    """A paragraph as Markdown."""
    if paragraph.lstrip().startswith(">>>"):
        return f"```python\n{paragraph}\n```"
    if re.search(r"\S {2,}\S", paragraph) or "\n    " in paragraph:
        return f"```text\n{paragraph}\n```"
    return paragraph.replace("[", "\\[")
