"""A heading and rows of text, as aligned columns, as Markdown and as HTML."""

import html
from collections.abc import Callable, Sequence
from importlib.resources import files

from derts.errors import printable

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
Rows = Sequence[Sequence[str]]
"""The first row is the heading."""


def table_text(rows: Rows, left: int = 1) -> str:
    """Aligned columns, the first `left` of them to the left.

    >>> print(table_text([("name", "value"), ("a", "1.5")]))
    name  value
    ────  ─────
    a       1.5
    """
    texts = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    texts.insert(1, ["─" * width for width in widths])
    lines = []
    for row in texts:
        places = enumerate(zip(row, widths, strict=True))
        cells = (text.ljust(size) if at < left else text.rjust(size) for at, (text, size) in places)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown_table(rows: Rows, left: int = 1) -> str:
    """A table of Markdown.

    >>> print(markdown_table([("name", "value"), ("a", "1.5")]))
    | name | value |
    | --- | ---: |
    | a | 1.5 |
    """
    lines = [f"| {' | '.join(text.replace('|', '/') for text in row)} |" for row in rows]
    lines.insert(1, f"|{' --- |' * left}{' ---: |' * (len(rows[0]) - left)}")
    return "\n".join(lines)


def html_table(rows: Rows, attributes: Callable[[int, int], str] = lambda row, at: "") -> str:
    """A table of HTML, every text escaped; `attributes` of the cell at (row, column) of the body.

    >>> print(html_table([("name",), ("a",)]))
    <div class="scroll"><table><thead><tr><th>name</th></tr></thead>
    <tbody><tr><td>a</td></tr></tbody></table></div>
    """
    head = "".join(f"<th>{html.escape(text)}</th>" for text in rows[0])
    lines = []
    for number, row in enumerate(rows[1:]):
        cells = (
            f"<td{attributes(number, at)}>{html.escape(text)}</td>" for at, text in enumerate(row)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = "\n".join(lines)
    table = f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def page_part(name: str) -> str:
    """A file beside this one: a style sheet, a script, a part of a page."""
    return (files("derts.report") / name).read_text(encoding="utf-8")


def html_page(title: str, body: str, style: str = "") -> str:
    """A page that needs, and may load, no other file; the title is escaped here."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title>"
        f"<style>{page_part('page.css')}{style}</style></head>\n<body>\n{body}</body></html>\n"
    )
