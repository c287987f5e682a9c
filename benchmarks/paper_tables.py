"""The part of docs/results.md that sets our numbers beside the paper's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from derts.config_file import as_values
from derts.reproduce.experiment import read_report
from derts.reproduce.job import make_config
from derts.reproduce.outcomes import Outcome, load_outcomes
from derts.reproduce.recipe import NAMES, Setting, cells
from derts.reproduce.report import HEADING, OURS
from derts.reproduce.scale import Scale
from derts.runs import AS_IT_WAS
from derts.statistics import over_seeds, paired_difference

Rows = list[tuple[str, ...]]
Markdown = Callable[[Rows], str]
STRATEGY = HEADING.index("strategy")
SEEDS = 3
UNUSED = ("figure2", "case-study")  # curves and pictures of runs, no numbers of their own


def paper_experiments(results: Path, markdown: Markdown) -> str:
    """What `derts reproduce` has measured so far, and every cell that it has not."""
    files = sorted(results.glob("reproduce-*.json"))
    parts = [
        "## The paper's experiments, ours beside theirs\n",
        "From `derts reproduce` ([reproduce.md](reproduce.md)); `paper` is its method to the "
        "letter, `derts` ours, and the paper's own DERTS stands beside both. 🟢: ours is at least "
        "theirs. Differences to random sampling are paired by seed.\n",
    ]
    parts += [_measured(file, markdown) for file in files]
    parts.append(_not_run(files, markdown))
    return "\n".join(parts)


def readme_of_paper(results: Path) -> Rows:
    """What README.md shows of it: five shots, where all three strategies have three seeds."""
    rows: Rows = []
    for name in ("table4-x0.25", "table1", "table3-x0.3"):
        outcomes = load_outcomes(results / f"reproduce-{name}.json")[1]
        for (setting, fraction), random in outcomes.items():
            others = [replace(setting, strategy=other) for other in ("paper", "derts")]
            found = [random, *(outcomes.get((other, fraction), {}) for other in others)]
            seeds = sorted(random)
            complete = all(sorted(one) == seeds for one in found) and len(seeds) == SEEDS
            if setting.strategy != "random" or setting.shot != 5 or not complete:
                continue
            values = [[one[seed].accuracy for seed in seeds] for one in found]
            what = f"{100 * setting.noise:.0f}% of labels swapped" if setting.noise else "clean"
            classes = f", {setting.classes} classes" if setting.classes else ""
            means = [f"{over_seeds(one).mean:.2f}" for one in values]
            difference = paired_difference(values[2], values[0]).shown("+")
            updates = str(random[seeds[0]].updates)
            mark = " †" if _changed(setting, random[seeds[0]]) else ""
            name = f"{setting.learner}, {what}{classes}{mark}"
            rows.append((name, updates, *means, difference))
    return rows


def _measured(file: Path, markdown: Markdown) -> str:
    report = read_report(file)
    name, outcomes, _ = load_outcomes(file)
    rows: Rows = [tuple(HEADING)]
    since: dict[str, None] = {}
    for cell, row in zip(cells(name), report.rows, strict=True):
        if row.verdict == "not run":
            continue
        texts = list(row.texts)
        if row.verdict == "at least theirs":
            texts[OURS] = f"🟢 {texts[OURS]}"
        made = outcomes[cell.setting, cell.fraction]
        changed = {text for outcome in made.values() for text in _changed(cell.setting, outcome)}
        if changed:
            texts[STRATEGY] += " †"
            since |= dict.fromkeys(sorted(changed))
        rows.append(tuple(texts))
    notes = "\n".join(f"{note}\n" for note in report.notes[1:] if "not run" not in note)
    if since:
        notes += f"\n†: made before the recipe had {', '.join(since)}; to be run again.\n"
    return f"### {report.name}: {report.title}\n\n`{file.name}`. {notes}\n{markdown(rows)}\n"


def _changed(setting: Setting, outcome: Outcome) -> list[str]:
    """Settings that the recipe has otherwise today, of those that decide the numbers."""
    today = as_values(make_config(setting, outcome.seed, Scale({})))
    was, found = as_values(AS_IT_WAS), []
    for part, skipped in (
        ("learner", ()),
        ("strategy", ("warmup",)),
        ("augment", ()),
        ("evaluation", ("tasks", "query", "seed", "split")),
    ):
        if part == "strategy" and setting.strategy in ("random", "us", "ats"):
            continue  # the settings of derts do not touch them
        then = {**was[part], **outcome.config.get(part, {})}
        names = [name for name in today[part] if today[part][name] != then[name]]
        found += [
            f"`--{part}.{name.replace('_', '-')}{_given(today[part][name])}`"
            for name in names
            if name not in skipped
        ]
    return found


def _given(value: object) -> str:
    """A value as it follows its option; one that is on is the option alone."""
    return "" if value is True else f" {value}"


def _not_run(files: list[Path], markdown: Markdown) -> str:
    """Every cell without a number of ours, by table, setting and learner."""
    run = set()
    for file in files:
        name, outcomes, _ = load_outcomes(file)
        run |= {(name, setting, fraction) for setting, fraction in outcomes}
    rows: Rows = [("table", "setting", "learner", "not run")]
    missing = total = 0
    for name in NAMES:
        if name in UNUSED:
            continue
        groups: dict[tuple[str, str], dict[str, list[str]]] = {}
        for cell in cells(name):
            total += 1
            if (name, cell.setting, cell.fraction) not in run:
                missing += 1
                group = groups.setdefault((cell.setting.place, cell.setting.learner), {})
                group.setdefault(cell.setting.variant, []).append(f"{100 * cell.fraction:g}%")
        for (place, learner), variants in groups.items():
            texts = [f"{variant} ({', '.join(points)})" for variant, points in variants.items()]
            rows.append((name, place, learner, "; ".join(texts)))
    return (
        f"### Not run\n\n{missing} of {total} cells have no number of ours yet (in brackets: after "
        f"which share of the updates).\n\n{markdown(rows)}\n"
    )
