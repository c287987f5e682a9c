"""Tables of what `derts reproduce` ran: ours beside the paper's, by which recipe, and the rest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from result_files import RESULTS, Rows

from derts.config_file import as_values
from derts.paper.cells import NAMES, Setting, cells
from derts.paper.collect import CellResult, Results, load_results, result_files
from derts.paper.figures import curves_file
from derts.paper.report import HEAD, table_report
from derts.paper.runs import READS, Scale, make_config
from derts.report.tables import markdown_table


def beside_the_paper() -> str:
    """Every result file of `derts reproduce`, ours beside theirs."""
    parts = []
    for file in _files():
        name, found, notes = load_results(file)
        report = table_report(name, cells(name), found, only_run=True)
        told = [f"`{_command(file, name, found, notes)}`", _other_recipe(found, notes)]
        if curves_file(file).exists():
            told.append(f"![{report.title}](figures/{file.stem}.png)")
        text = "\n\n".join(line for line in told if line)
        title = f"### {file.stem.removeprefix('reproduce-')}: {report.title}"
        parts.append(f"{title}\n\n{markdown_table(report.marked(), len(HEAD))}\n\n{text}\n")
    return "\n".join(parts).rstrip()


def _files() -> list[Path]:
    """Result files of `derts reproduce`, in the order of the tables."""
    files = result_files(RESULTS)
    return [file for name in NAMES for file in files if f"-{name}" in file.stem]


def _presets(notes: list[str]) -> tuple[str, ...]:
    """The presets that a result file names in its notes."""
    found = (re.fullmatch(r"Presets on top of the recipe: (.*)\.", note) for note in notes)
    return next((tuple(match[1].split(", ")) for match in found if match), ())


def _command(file: Path, name: str, found: Results, notes: list[str]) -> str:
    """What makes a result file again, given a prepared store."""
    command = f"derts reproduce {name} --dataset mini=stores/mini"
    command += f" --preset {' '.join(_presets(notes))}"
    scale = re.search(r"-x([\d.]+)(-|$)", file.stem)
    command += f" --updates-scale {scale[1]}" if scale else ""
    only = [f"strategy={one}" for one in dict.fromkeys(setting.strategy for setting, _ in found)]
    only += [f"shot={shot}" for shot in dict.fromkeys(setting.shot for setting, _ in found)]
    only += [f"fraction={max(fraction for _, fraction in found):g}"]
    return f"{command} --only {','.join(only)}"


def _other_recipe(found: Results, notes: list[str]) -> str:
    """Which settings the recipe has otherwise today, of those that decide the numbers."""
    changed: dict[str, dict[str, None]] = {}
    for (setting, _), seeds in found.items():
        for one in seeds.values():
            options = dict.fromkeys(_changed(setting, one, _presets(notes)))
            changed.setdefault(setting.strategy, {}).update(options)
    told = [f"{name} with {', '.join(options)}" for name, options in changed.items() if options]
    return f"By an earlier recipe: {'; '.join(told)}." if told else ""


def _changed(setting: Setting, one: CellResult, presets: tuple[str, ...]) -> Iterator[str]:
    today = as_values(make_config(setting, one.seed, Scale({}, presets=presets)))
    groups = ("tasks", "augment", "model", "learner", "optimiser", "strategy", "evaluation")
    for group in groups:
        names = today[group] if group != "strategy" else READS.get(setting.strategy, today[group])
        for name in names:
            then = one.setting(group, name, today[group][name])
            if then != today[group][name] and name != "warmup":  # which follows the scale
                option = f"--{group}.{name.replace('_', '-')}"
                if isinstance(then, bool):
                    yield f"`{option}`" if then else f"no `{option}`"
                else:
                    yield f"`{option} {then}`"


def not_run() -> str:
    """How much of each table has a number of ours, and why the rest has none."""
    run: dict[str, dict[tuple[Setting, float], bool]] = {name: {} for name in NAMES}
    for file in _files():
        name, found, notes = load_results(file)
        if set(_presets(notes)) <= {"gpu"}:
            for (setting, at), seeds in found.items():
                done = any(one.updates == round(at * setting.updates) for one in seeds.values())
                run[name][setting, at] = run[name].get((setting, at), False) or done
    head = ("table", "cells", "measured at full length", "shortened", "not measured", "why not")
    rows: Rows = [head]
    for name in NAMES:
        wanted = [(cell.setting, cell.fraction) for cell in cells(name)]
        whole = sum(run[name].get(cell, False) for cell in wanted)
        missing = Counter(_why_not(cell[0]) for cell in wanted if cell not in run[name])
        numbers = (len(wanted), whole, len(wanted) - whole - missing.total(), missing.total())
        why = "; ".join(f"{count}: {reason}" for reason, count in missing.items())
        rows.append((name, *(str(number) for number in numbers), why))
    sums = [str(sum(int(row[column]) for row in rows[1:])) for column in range(1, 5)]
    return markdown_table([*rows, ("all", *sums, "")])


def _why_not(setting: Setting) -> str:
    if setting.dataset == "tiered-imagenet":
        return "needs all of tiered-ImageNet"
    slow = "ResNet-12, ten times as long" if setting.backbone == "resnet12" else ""
    return slow or "no GPU time yet"
