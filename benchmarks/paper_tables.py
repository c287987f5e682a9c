"""Tables of what `derts reproduce` ran: ours beside the paper's, by which recipe, and the rest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from result_files import RESULTS, Rows

from derts.config_file import as_values, with_values
from derts.paper.cells import NAMES, Cell, Setting, cells
from derts.paper.collect import CellResult, Results, load_results, result_files
from derts.paper.report import COLUMNS, table_report
from derts.paper.runs import READS, Scale, make_config
from derts.report.tables import markdown_table


def beside_the_paper() -> str:
    """Every result file of `derts reproduce`: the paper's numbers and ours in a row."""
    found: list[dict[str, str]] = []
    told = []
    for file in _files():
        name, held, notes = load_results(file)
        asked = [cell for cell in cells(name) if cell.fraction == 1 or _whole(cell, held)]
        report = table_report(name, asked, held, only_run=True)
        theirs: dict[str, str] = {}
        for row in report.rows:
            ours = dict(zip(report.heading, row, strict=True))
            if ours["by"] == "paper":
                theirs = ours
            elif ours["by"] == "ours" and theirs:
                place = ours["setting"].replace("mini-imagenet 5-way ", "").replace(" cnn4", "")
                after = ours["updates"].partition(" ")[0]
                of_paper = "" if after == theirs["updates"] else f" of {theirs['updates']}"
                found.append(
                    {
                        "": f"{_short(file)}: {place}, {ours['learner']}",
                        "updates": after + of_paper,
                        "paper: random": theirs["random"],
                        "its DERTS": theirs["the paper's rule"],
                        **{column: ours[column] for column in COLUMNS.values() if column in ours},
                    }
                )
        other = _other_recipe(held, notes)
        told.append(f"- {_short(file)}: `{_command(file, name, held, notes)}`. {other}".rstrip())
    heading = max(map(tuple, found), key=len)
    rows = [heading, *(tuple(one.get(column, "") for column in heading) for one in found)]
    return markdown_table(rows) + "\n\n" + "\n".join(told)


def _whole(cell: Cell, found: Results) -> bool:
    """Whether a cell was measured after as many updates as the paper's."""
    return any(one.updates == cell.updates for one in found.get(cell.key, {}).values())


def _short(file: Path) -> str:
    return file.stem.removeprefix("reproduce-")


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
    config = make_config(setting, one.seed, Scale({}, presets=presets))
    today, before = as_values(config), as_values(with_values(config, one.config, "a result file"))
    groups = ("tasks", "augment", "model", "learner", "optimiser", "strategy", "evaluation")
    for group in groups:
        names = today[group] if group != "strategy" else READS.get(setting.strategy, today[group])
        for name in names:
            then = before[group][name]
            if then != today[group][name] and name != "warmup":  # which follows the scale
                option = f"--{group}.{name.replace('_', '-')}"
                if isinstance(then, bool):
                    yield f"`{option}`" if then else f"no `{option}`"
                else:
                    yield f"`{option} {then}`"


def coverage() -> str:
    """How many of the paper's accuracies have a number of ours, and why the rest has none.

    The paper's DERTS counts where its rule or our `derts` was run.
    """
    run: dict[tuple[Setting, float], set[int]] = {}
    for file in _files():
        for key, seeds in load_results(file)[1].items():
            run.setdefault(key, set()).update(one.updates for one in seeds.values())
    rows: Rows = [
        ("the paper's", "accuracies", "measured at full length", "shortened", "not measured",
         "why not")
    ]  # fmt: skip
    for name in NAMES:
        made: dict[tuple[Setting, float], set[int]] = {}
        for cell in cells(name):
            if cell.metric == "accuracy" and cell.paper is not None:
                setting = cell.setting
                one = setting.of("paper") if setting.strategy == "derts" else setting
                made.setdefault((one, cell.fraction), set()).update(run.get(cell.key, ()))
        if made:
            whole = sum(round(at * one.updates) in updates for (one, at), updates in made.items())
            missing = Counter(_why_not(one) for (one, _), updates in made.items() if not updates)
            parts = (whole, len(made) - whole - missing.total(), missing.total())
            why = "; ".join(f"{count}: {reason}" for reason, count in missing.items())
            rows.append((name, *(str(number) for number in (len(made), *parts)), why))
    sums = [str(sum(int(row[column]) for row in rows[1:])) for column in range(1, 5)]
    return markdown_table([*rows, ("all", *sums, "")])


def _why_not(setting: Setting) -> str:
    if setting.dataset == "tiered-imagenet":
        return "needs all of tiered-ImageNet"
    slow = "ResNet-12, ten times as long" if setting.backbone == "resnet12" else ""
    return slow or "no GPU time yet"
