"""Ours beside the paper's: rows of a table, as Markdown, HTML and text for a terminal."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from derts.paper.outcomes import Outcome, Outcomes
from derts.paper.recipe import Cell, Setting, cells
from derts.statistics import over_seeds, paired_difference

HEADING = (
    "setting", "learner", "strategy", "training", "paper", "ours", "ours − random", "seeds",
    "updates", "s/update",
)  # fmt: skip
OURS = HEADING.index("ours")
NOT_RUN = "not run"
Verdict = Literal["at least theirs", "below", "no comparison", "not run"]

LEGEND = {
    "accuracy": (
        "Accuracy in % on clean test tasks of classes never trained on; ± is the 95% interval, in "
        "the paper's column over test tasks of one run, in ours over seeds (Student's t, none for "
        "a single seed). Differences are paired by seed. Green: ours is at least the paper's, "
        "after as many updates where the paper has such a number. Its DERTS stands beside `paper`, "
        "the method to the letter, and `derts`, ours. ATS alone trains by validation classes."
    ),
    "seconds": (
        "Seconds per update after the warm-up, evaluation and checkpoints left out; ± is the 95% "
        "interval over seeds. The paper's are of an NVIDIA A6000. Green: ours is at most the "
        "paper's. ATS alone trains by validation classes."
    ),
}


JUDGED_BY_BEST = (
    "Runs, of whichever strategy, are judged by those of their weights that were best on "
    "validation classes, looked at several times after the warm-up."
)


def _seen_anew(ways: str) -> str:
    return f"Training images are {ways} anew in every update, whatever the strategy."


def _turned(found: Sequence[Cell], outcomes: Outcomes) -> list[str]:
    """Which strategies trained on turned classes, if any."""
    by_strategy: dict[str, set[bool]] = {}
    for cell in found:
        seeds = outcomes.get((cell.setting, cell.fraction), {}).values()
        by_strategy.setdefault(cell.setting.strategy, set()).update(one.turned for one in seeds)
    names = [name for name, turned in by_strategy.items() if True in turned]
    if not names:
        return []
    others = any(False in turned for turned in by_strategy.values())
    who = f"{' and '.join(names)} alone" if others else "Every strategy"
    also = ", in its warm-up too; the others do with --preset turned" if others else ""
    return [
        f"{who} trains on turned classes: each is four, upright and turned by 90, 180 and 270 "
        f"degrees{also}."
    ]


def _nothing_to_choose(made: Sequence[Outcome]) -> list[str]:
    """How often a strategy had nothing to choose."""
    free = [one for one in made if one.config.get("strategy", {}).get("selects") != "always"]
    shares = [one.random_share for one in free if one.random_share is not None]
    if not any(shares):
        return []
    mean = 100 * sum(shares) / len(shares)
    return [
        f"In {mean:.0f}% of its updates after the warm-up derts had found nothing to mend, to drop "
        "or to stand for, and trained on the tasks of random sampling."
    ]


@dataclass(frozen=True)
class Row:
    """One cell as text, and how ours compares."""

    texts: tuple[str, ...]
    verdict: Verdict


@dataclass(frozen=True)
class Report:
    """A table with its title and what is to be known about it."""

    name: str
    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def make_report(
    name: str, title: str, found: Sequence[Cell], outcomes: Outcomes, notes: Sequence[str]
) -> Report:
    """Rows for all cells, run or not."""
    at_updates = {
        (cell.setting, round(cell.fraction * cell.setting.updates)): cell for cell in cells(name)
    }
    rows = tuple(_row(cell, outcomes, at_updates) for cell in found)
    missing = sum(row.verdict == "not run" for row in rows)
    made = [
        outcome
        for cell in found
        for outcome in outcomes.get((cell.setting, cell.fraction), {}).values()
    ]
    makers = {one.measured_on for one in made}
    said = [LEGEND[found[0].metric]] if found else []
    said += [JUDGED_BY_BEST] if any(one.judged_by_best for one in made) else []
    said += [_seen_anew(ways) for ways in sorted({one.seen_anew for one in made}) if ways]
    said += _turned(found, outcomes)
    said += _nothing_to_choose(made)
    said += notes
    said += [f"Measured on: {', '.join(sorted(makers))}."] if makers else []
    said += [f"{missing} of {len(rows)} cells were not run."] if missing else []
    return Report(name, title, rows, tuple(said))


def _row(cell: Cell, outcomes: Outcomes, at_updates: Mapping[tuple[Setting, int], Cell]) -> Row:
    setting, metric = cell.setting, cell.metric
    digits = 2 if metric == "accuracy" else 3
    seeds = outcomes.get((setting, cell.fraction), {})
    glyphs = any(one.config.get("data") == "glyphs" for one in seeds.values())
    place = f"glyphs for {setting.place}" if glyphs else setting.place
    of_random = outcomes.get((setting.baseline(), cell.fraction), {})
    alone = _has_turned(seeds) and not _has_turned(of_random)
    variant = f"{setting.variant}, turned" if alone else setting.variant
    head = (place, setting.learner, variant, f"{100 * cell.fraction:g}%")
    values = _values(seeds, metric)
    wanted = round(cell.fraction * setting.updates)
    of_recipe = f"{'recipe' if cell.paper is None else 'paper'} {wanted}"
    if not values:
        return Row((*head, _theirs(cell), NOT_RUN, "", "", of_recipe, ""), "not run")
    ours = over_seeds(list(values.values()))
    difference = ""
    if setting.strategy != "random":
        random = _values(of_random, metric)
        both = sorted(values.keys() & random.keys())
        difference = "random not run"
        if all(_only_warm_up(one) for one in seeds.values()):
            difference = "none: all of it warm-up"
        elif both:
            pair = paired_difference([values[s] for s in both], [random[s] for s in both])
            difference = pair.shown("+", digits)
    updates = sorted({one.updates for one in seeds.values()})
    count, theirs, beside = " or ".join(map(str, updates)), _theirs(cell), cell
    if updates != [wanted]:
        equal = at_updates.get((setting, updates[0])) if len(updates) == 1 else None
        if equal is None or equal.paper is None or metric != "accuracy":
            count += f" ({of_recipe})"
        else:  # the fairer comparison: the paper's own number after as many updates
            theirs, beside = f"{_theirs(equal)} at {updates[0]}", equal
    times = [one.seconds_per_update for one in seeds.values() if one.seconds_per_update is not None]
    each = f"{sum(times) / len(times):.3f}" if times else ""
    texts = (*head, theirs, ours.shown("", digits), difference, str(len(values)), count, each)
    return Row(texts, "no comparison" if glyphs else _verdict(beside, ours.mean))


def _has_turned(seeds: Mapping[int, Outcome]) -> bool:
    return any(one.turned for one in seeds.values())


def _only_warm_up(outcome: Outcome) -> bool:
    """Whether training had not come to the strategy yet: random tasks up to here."""
    warmup = outcome.config.get("strategy", {}).get("warmup", 0)
    return 0 < outcome.weights_of_update <= int(warmup)


def _theirs(cell: Cell) -> str:
    value = "" if cell.paper is None else f"{cell.paper:.2f}"
    return value + ("" if cell.paper_interval is None else f" ± {cell.paper_interval:.2f}")


def _values(seeds: dict[int, Outcome], metric: str) -> dict[int, float]:
    found = {seed: outcome.value(metric) for seed, outcome in seeds.items()}
    return {seed: value for seed, value in found.items() if value is not None}


def _verdict(cell: Cell, ours: float) -> Verdict:
    if cell.paper is None:
        return "no comparison"
    rounded = round(ours, 2)  # as exact as the paper's own numbers
    wins = rounded >= cell.paper if cell.metric == "accuracy" else rounded <= cell.paper
    return "at least theirs" if wins else "below"


def markdown(report: Report) -> str:
    """The report as a section of Markdown; a green circle marks ours at or above theirs."""
    lines = [f"## {report.name}: {report.title}", ""]
    lines += [f"{note}\n" for note in report.notes]
    lines += [f"| {' | '.join(HEADING)} |", f"|{' --- |' * 4}{' ---: |' * (len(HEADING) - 4)}"]
    for row in report.rows:
        texts = list(row.texts)
        if row.verdict == "at least theirs":
            texts[OURS] = f"🟢 {texts[OURS]}"
        lines.append(f"| {' | '.join(text.replace('|', '/') for text in texts)} |")
    return "\n".join(lines) + "\n"


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem;
  color: #1a202c; background: #fff }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #e2e8f0; text-align: right }
th:nth-child(-n+4), td:nth-child(-n+4) { text-align: left }
.win { background: #c6f6d5; color: #22543d } .missing { color: #718096; font-style: italic }
"""


def as_html(report: Report) -> str:
    """The report as one page that needs no other file; everything in it is escaped."""
    escape = html.escape
    head = "".join(f"<th>{escape(text)}</th>" for text in HEADING)
    body = []
    kinds = {"at least theirs": "win", "not run": "missing"}
    for row in report.rows:
        kind = kinds.get(row.verdict, "")
        cells = [
            f'<td class="{kind}">{escape(text)}</td>'
            if kind and number == OURS
            else f"<td>{escape(text)}</td>"
            for number, text in enumerate(row.texts)
        ]
        body.append(f"<tr>{''.join(cells)}</tr>")
    notes = "".join(f"<p>{escape(note)}</p>" for note in report.notes)
    title = escape(f"{report.name}: {report.title}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>{notes}\n<table><thead><tr>{head}"
        f"</tr></thead><tbody>\n" + "\n".join(body) + "\n</tbody></table></body></html>\n"
    )


def print_report(report: Report) -> None:
    """On standard output: colours on a terminal, plain text elsewhere."""
    import sys

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else 240, highlight=False)
    table = Table(title=None, box=None, pad_edge=False)
    for number, text in enumerate(HEADING):
        table.add_column(text, justify="left" if number < 4 else "right", overflow="fold")
    styles = {"at least theirs": "green", "not run": "dim"}
    for row in report.rows:
        style = styles.get(row.verdict, "")
        table.add_row(
            *(Text(text, style if number == OURS else "") for number, text in enumerate(row.texts))
        )
    console.print(Text(f"{report.name}: {report.title}", "bold"))
    console.print(table)
    for note in report.notes:
        console.print(Text(note))
    console.print()
