"""The part of docs/results.md that sets our numbers beside the paper's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from result_files import Rows

from derts.config_file import as_values
from derts.paper.curves import draw_curves, load_curves
from derts.paper.experiment import read_report
from derts.paper.figures import beside
from derts.paper.job import make_config
from derts.paper.outcomes import Outcome, Outcomes, load_outcomes
from derts.paper.recipe import NAMES, Setting, cells
from derts.paper.report import HEADING, LEGEND, OURS
from derts.paper.scale import Scale
from derts.statistics import over_seeds, paired_difference
from derts.training.run_folder import AS_IT_WAS

Markdown = Callable[[Rows], str]
STRATEGY = HEADING.index("strategy")
SEEDS = 3


def paper_experiments(results: Path, markdown: Markdown) -> str:
    """What `derts reproduce` has measured so far, and every cell that it has not."""
    files = [
        path
        for name in NAMES
        for path in sorted(results.glob(f"reproduce-{name}*.json"), key=lambda path: path.stem)
        if "curves" not in path.name
    ]
    parts = [
        "## The paper's experiments, ours beside theirs\n",
        f"From `derts reproduce` ([reproduce.md](reproduce.md)). {LEGEND['accuracy']} Here green "
        "is 🟢. A run's learning rate decays over all of its updates: at 10% it has fallen by 2%, "
        "at 30% by a fifth.\n",
    ]
    parts += [_measured(file, markdown) for file in files]
    parts.append(_not_run(files, markdown))
    return "\n".join(parts)


def readme_of_paper(results: Path) -> Rows:
    """What README.md shows of it: five shots, where random and derts have three seeds."""
    rows: Rows = []
    for name in ("table4-x0.25", "table1", "table3-x0.3", "table3-x0.3-turned"):
        _, outcomes, notes = load_outcomes(results / f"reproduce-{name}.json")
        for (setting, fraction), random in outcomes.items():
            if setting.strategy != "random" or setting.shot != 5:
                continue
            others = [replace(setting, strategy=other) for other in ("paper", "derts")]
            found = [random, *(outcomes.get((other, fraction), {}) for other in others)]
            if any(len(found[which]) < SEEDS for which in (0, -1)):
                continue
            values = [[one[seed].accuracy for seed in sorted(one)] for one in found]
            means = [f"{over_seeds(one).mean:.2f}" if one else "not run" for one in values]
            difference = paired_difference(values[-1], values[0]).shown("+")
            changed = any(
                _changed(of, outcome, _presets(notes))
                for of, one in zip((setting, *others), found, strict=True)
                for outcome in one.values()
            )
            row = f"{setting.learner}, {_what(setting, found)}{' †' if changed else ''}"
            rows.append((row, str(next(iter(random.values())).updates), *means, difference))
    return rows


def _what(setting: Setting, found: list[dict[int, Outcome]]) -> str:
    """A row's tasks in words: noise, classes, and which strategies had turned ones."""
    what = f"{100 * setting.noise:.0f}% of labels swapped" if setting.noise else "clean"
    what += f", {setting.classes} classes" if setting.classes else ""
    random, *_, derts = (any(one.turned for one in seeds.values()) for seeds in found)
    if not derts:
        return what
    return f"{what} ‡" if random else f"{what}, ‡ of `derts` alone"


def _measured(file: Path, markdown: Markdown) -> str:
    report = read_report(file)
    name, outcomes, notes_of_file = load_outcomes(file)
    presets = _presets(notes_of_file)
    rows: Rows = [tuple(HEADING)]
    since: dict[str, None] = {}
    for cell, row in zip(cells(name), report.rows, strict=True):
        if row.verdict == "not run":
            continue
        texts = list(row.texts)
        if row.verdict == "at least theirs":
            texts[OURS] = f"🟢 {texts[OURS]}"
        made = outcomes[cell.setting, cell.fraction]
        changed = {
            text for outcome in made.values() for text in _changed(cell.setting, outcome, presets)
        }
        if changed:
            texts[STRATEGY] += " †"
            since |= dict.fromkeys(sorted(changed))
        rows.append(tuple(texts))
    unfinished = _unfinished(outcomes)
    notes = f"Unfinished: {unfinished}.\n\n" if unfinished else ""
    notes += "\n".join(f"{note}\n" for note in report.notes[1:] if "not run" not in note)
    if since:
        notes += f"\n†: made before the recipe had {', '.join(since)}; to be run again.\n"
    if beside(file, "-curves.json").exists():
        notes += f"\n![{report.title}](figures/{file.stem}.png)\n"
    return (
        f"### {file.stem.removeprefix('reproduce-')}: {report.title}\n\n`{file.name}`, made by\n\n"
        f"```\n{_commands(file, name, outcomes, presets)}\n```\n\n{notes}\n{markdown(rows)}\n"
    )


def draw_paper_figures(results: Path, folder: Path) -> None:
    """Pictures that belong to results."""
    for file in results.glob("reproduce-figure2*-curves.json"):
        name = file.name.replace("-curves.json", ".png")
        draw_curves(load_curves(file), folder / name)


def _presets(notes: Iterable[str]) -> tuple[str, ...]:
    """The presets that a result file names in its notes."""
    found = (re.fullmatch(r"Presets on top of the recipe: (.*)\.", note) for note in notes)
    return next((tuple(match[1].split(", ")) for match in found if match), ())


def _commands(file: Path, name: str, outcomes: Outcomes, presets: tuple[str, ...]) -> str:
    """What makes a result file again, given a prepared store: a line for shots run as far."""
    command = f"derts reproduce {name} --dataset mini=stores/mini"
    command += f" --preset {' '.join(presets)}" if presets else ""
    scale = re.search(r"-x([\d.]+)(-|$)", file.stem)
    command += f" --updates-scale {scale[1]}" if scale else ""
    strategies = dict.fromkeys(setting.strategy for setting, _ in outcomes)
    only = ",".join(f"strategy={strategy}" for strategy in strategies)
    furthest = _furthest(outcomes)
    lines = []
    for last in dict.fromkeys(furthest.values()):
        shots = ",".join(f"shot={shot}" for shot, far in furthest.items() if far == last)
        lines.append(f"{command} --only {only},{shots},fraction={last:g}")
    return "\n".join(lines)


def _furthest(outcomes: Outcomes) -> dict[int, float]:
    """By shot: the largest share of training that was measured."""
    furthest: dict[int, float] = {}
    for setting, fraction in outcomes:
        furthest[setting.shot] = max(fraction, furthest.get(setting.shot, 0.0))
    return furthest


def _unfinished(outcomes: Outcomes) -> str:
    """Runs that are missing, or did not get as far as others of their shot."""
    furthest = _furthest(outcomes)
    found = []
    for setting in dict.fromkeys(setting for setting, _ in outcomes):
        last = furthest[setting.shot]
        seeds = len(outcomes.get((setting, last), {}))
        if seeds < SEEDS:
            noise = f", {100 * setting.noise:.0f}% noise" if setting.noise else ""
            text = f"{setting.learner}{noise}, {setting.variant} has {seeds} of {SEEDS} seeds"
            found.append(f"{text} at {100 * last:g}%")
    return "; ".join(found)


def _changed(setting: Setting, outcome: Outcome, presets: tuple[str, ...]) -> list[str]:
    """Settings that the recipe has otherwise today, of those that decide the numbers."""
    today = as_values(make_config(setting, outcome.seed, Scale({}, presets=presets)))
    was, found = as_values(AS_IT_WAS), []
    for part, skipped in (
        ("tasks", ()),
        ("augment", ()),
        ("model", ()),
        ("learner", ()),
        ("optimiser", ()),
        # the warm-up follows the scale, and where labels are swapped derts always selects
        ("strategy", ("warmup", "selects") if setting.noise else ("warmup",)),
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
    """Every cell without a number of ours, or at fewer updates only, by table and setting."""
    run, shorter = set(), dict.fromkeys(NAMES, 0)
    for file in files:
        name, outcomes, notes = load_outcomes(file)
        if set(_presets(notes)) - {"gpu"}:
            continue  # another recipe
        run |= {(name, setting, fraction) for setting, fraction in outcomes}
        for (setting, fraction), seeds in outcomes.items():
            wanted = round(fraction * setting.updates)
            shorter[name] += all(one.updates < wanted for one in seeds.values())
    rows: Rows = [("table", "setting", "learner", "not run")]
    missing = total = 0
    for name in NAMES:
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
    fewer = ", ".join(f"{count} of {name}" for name, count in shorter.items() if count)
    return (
        f"### Not run\n\n{missing} of {total} cells have no number of ours yet (in brackets: after "
        f"which share of the updates). With fewer updates than the recipe's, as the tables above "
        f"say, and not yet with all of them: {fewer}.\n\n{markdown(rows)}\n"
    )
