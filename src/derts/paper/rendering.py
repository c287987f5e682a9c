"""Reports as Markdown, as HTML and as text for a terminal."""

from __future__ import annotations

import html
import sys

from derts.paper.report import NOT_RUN, TableReport


def markdown_table(report: TableReport) -> str:
    """The rows as a Markdown table; a green circle marks ours at or above theirs."""
    lines = [f"| {' | '.join(report.heading)} |"]
    lines.append(f"|{' --- |' * 4}{' ---: |' * (len(report.heading) - 4)}")
    for row in report.rows:
        texts = [f"🟢 {text}" if at in row.wins else text for at, text in enumerate(row.texts)]
        lines.append(f"| {' | '.join(text.replace('|', '/') for text in texts)} |")
    return "\n".join(lines)


def markdown(report: TableReport) -> str:
    """The report as a section of Markdown."""
    notes = "".join(f"{note}\n\n" for note in report.notes)
    return f"## {report.name}: {report.title}\n\n{notes}{markdown_table(report)}\n"


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 90rem; padding: 0 1rem;
  color: #1a202c; background: #fff }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #e2e8f0; text-align: right }
th:nth-child(-n+4), td:nth-child(-n+4) { text-align: left }
.win { background: #c6f6d5; color: #22543d } .missing { color: #718096; font-style: italic }
"""


def as_html(report: TableReport) -> str:
    """The report as one page that needs no other file; everything in it is escaped."""
    escape = html.escape
    head = "".join(f"<th>{escape(text)}</th>" for text in report.heading)
    body = []
    for row in report.rows:
        tags = []
        for at, text in enumerate(row.texts):
            kind = "win" if at in row.wins else "missing" if text == NOT_RUN else ""
            tags.append(f"<td{f' class={kind!r}' if kind else ''}>{escape(text)}</td>")
        body.append(f"<tr>{''.join(tags)}</tr>")
    notes = "".join(f"<p>{escape(note)}</p>" for note in report.notes)
    title = escape(f"{report.name}: {report.title}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>{notes}\n<table><thead><tr>{head}"
        f"</tr></thead><tbody>\n" + "\n".join(body) + "\n</tbody></table></body></html>\n"
    )


def print_report(report: TableReport) -> None:
    """On standard output: colours on a terminal, plain text elsewhere."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 240, highlight=False)
    table = Table(title=None, box=None, pad_edge=False)
    for number, text in enumerate(report.heading):
        table.add_column(text, justify="left" if number < 4 else "right", overflow="fold")
    for row in report.rows:
        styles = [
            "green" if at in row.wins else "dim" if text == NOT_RUN else ""
            for at, text in enumerate(row.texts)
        ]
        table.add_row(*map(Text, row.texts, styles))
    console.print(Text(f"{report.name}: {report.title}", "bold"))
    console.print(table)
    for note in report.notes:
        console.print(Text(note))
    console.print()
