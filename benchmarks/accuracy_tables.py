"""Tables of accuracy: README.md, docs/results.md and docs/strategies.md.

Each has the columns random, random + votes, the paper's rule and derts, or a row for each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from result_files import NOT_RUN, RESULTS, Rows, Scores, compared, mark, read

from derts.config_file import as_values
from derts.paper.cells import NAMES, Setting, cells
from derts.paper.collect import CellResult, Results, load_results
from derts.paper.figures import curves_file
from derts.paper.report import HEAD, SAME_AS_RANDOM, make_report
from derts.paper.runs import READS, Scale, make_config
from derts.report.tables import markdown_table
from derts.statistics import holm, over_seeds

STRATEGIES = ("random", "random + votes", "the paper's rule", "derts")
TABLE4, CLEAN = "reproduce-table4-x0.25", "reproduce-table1-x0.3-augment"
NO_AUGMENTATION, NO_SMOOTHING = "earlier-table4-as-they-are-h200", "earlier-table4-anil-h200"
TASKS_NOISE = "noisy-tasks-h200.json"
MISLABELLED = "60% of tasks mislabelled"


@cache
def results(name: str) -> Results:
    """A result file of `derts reproduce`."""
    return load_results(RESULTS / f"{name}.json")[1]


def scores(name: str, setting: Setting, fraction: float, strategy: str) -> Scores:
    """What a result file of `derts reproduce` has of a strategy."""
    found = Scores()
    for seed, one in results(name).get((setting.of(strategy), fraction), {}).items():
        found.add(seed, one.accuracy, one.code)
    return found


def settings(name: str, fraction: float | None = None) -> Iterator[tuple[Setting, float, int]]:
    """The settings of a file of which random sampling was run, with their updates."""
    for (setting, at), seeds in results(name).items():
        if setting.strategy == "random" and fraction in (None, at):
            yield setting, at, next(iter(seeds.values())).updates


def four(find: Callable[[str], Scores], clean: bool, interval: bool = True) -> tuple[str, ...]:
    """The columns of the four strategies, and derts − random."""
    random, votes, paper, derts = map(find, ("random", "random-votes", "paper", "derts"))
    of_votes = SAME_AS_RANDOM if clean and not votes else votes.shown(interval)
    others = (paper.shown(interval), derts.shown(interval))
    return random.shown(interval), of_votes, *others, derts.minus(random)


def of_file(name: str, setting: Setting, at: float) -> Callable[[str], Scores]:
    return lambda strategy: scores(name, setting, at, strategy)


def of_tasks_noise(learner: str, suffix: str = "") -> Callable[[str], Scores]:
    found = compared(TASKS_NOISE)
    return lambda strategy: found.get((learner, f"{strategy}{suffix}"), Scores())


def swapped(setting: Setting) -> str:
    return f"{100 * setting.noise:.0f}% of labels swapped" if setting.noise else "clean"


def readme() -> str:
    """At the end of training: swapped labels, mislabelled tasks, clean tasks."""
    rows: Rows = [("mini-ImageNet 5-way 5-shot, CNN4-64", *STRATEGIES, "derts − random")]
    for name in (TABLE4, CLEAN):
        if name == CLEAN:
            for learner in ("anil", "protonet"):
                told = four(of_tasks_noise(learner), clean=False, interval=False)
                rows.append((f"{learner}, {MISLABELLED} \\*", *told))
        for setting, at, _ in settings(name, 1.0):
            told = four(of_file(name, setting, at), not setting.noise, interval=False)
            rows.append((f"{setting.learner}, {swapped(setting)}", *told))
    table = markdown_table(rows).replace(" | ", "|").replace("| ", "|").replace(" |", "|")
    return (
        f"{table}\n\nAccuracy in % on 600 clean test tasks after 3,000 updates (\\*: 500), three\n"
        "seeds; ± is the 95% interval of the paired difference. °: by code that no commit holds."
    )


def noisy() -> str:
    """At the end of training with wrong labels, and how much of their cost is won back."""
    rows: Rows = [
        ("learner, labels", "updates", "random, clean labels", *STRATEGIES, "derts − random",
         "after Holm", "of the cost won back")
    ]  # fmt: skip
    gains = []
    for setting, at, updates in settings(TABLE4, 1.0):
        find = of_file(TABLE4, setting, at)
        without = scores(CLEAN, replace(setting, noise=0.0, updates=10_000), at, "random")
        rows.append(_won_back(f"{setting.learner}, {swapped(setting)}", updates, without, find))
        gains.append(find("derts").gains(find("random")))
    for learner in ("anil", "protonet"):
        find, without = of_tasks_noise(learner), of_tasks_noise(learner, " clean")("random")
        rows.append(_won_back(f"{learner}, {MISLABELLED}", 500, without, find))
        gains.append(find("derts").gains(find("random")))
    corrected = [f"± {one.interval:.2f}" for one in holm(gains)]
    whole = [(*row[:-1], one, row[-1]) for row, one in zip(rows[1:], corrected, strict=True)]
    return markdown_table([rows[0], *whole])


def _won_back(
    label: str, updates: int, without: Scores, find: Callable[[str], Scores]
) -> tuple[str, ...]:
    random, derts = find("random"), find("derts")
    share = f"{100 * (derts.mean - random.mean) / (without.mean - random.mean):.0f}%"
    return label, str(updates), without.shown(), *four(find, clean=False), share


def parts() -> str:
    """Votes and selection apart, on validation classes."""
    rows: Rows = [
        ("learner, 40% of labels swapped", "updates", *STRATEGIES[:3], "derts without votes",
         "derts", "random + votes − random", "derts − random + votes")
    ]  # fmt: skip
    files = {
        "votes-validation-h200.json": (
            ("anil", "protonet"), "mini-ImageNet",
            ("random swap40", "votes-alone swap40", "", "derts swap40", "derts-votes swap40"),
        ),
        "swapped-labels-cpu.json": (
            ("protonet",), "glyphs", ("random", "random tasks, votes", "", "", "derts")
        ),
    }  # fmt: skip
    for file, (learners, data, names) in files.items():
        for learner in learners:
            found = [compared(file).get((learner, name), Scores()) for name in names]
            updates = str(read(file)["runs"][0]["updates"])
            gains = found[1].minus(found[0]), found[-1].minus(found[1])
            told = (one.shown() for one in found)
            rows.append((f"{learner}, {data}", updates, *told, *gains))
    return markdown_table(rows)


def early() -> str:
    """With swapped labels, along the way."""
    rows: Rows = [("learner, labels", "updates", *STRATEGIES, "derts − random")]
    for setting, at, updates in settings(TABLE4):
        if at < 1:
            told = four(of_file(TABLE4, setting, at), clean=False)
            rows.append((f"{setting.learner}, {swapped(setting)}", str(updates), *told))
    return markdown_table(rows)


def clean() -> str:
    """Clean tasks: today's derts, and one that selects in every round."""
    rows: Rows = [
        ("learner", "shot", "augmentation", "updates", *STRATEGIES, "derts − random",
         "selecting in every round − random")
    ]  # fmt: skip
    for name in ("reproduce-table1", CLEAN):
        earlier = f"{name.replace('reproduce', 'earlier')}-always-h200"
        for setting, at, updates in settings(name):
            always = scores(earlier, setting, at, "derts")
            if always and not _only_warm_up(results(earlier)[setting.of("derts"), at]):
                find = of_file(name, setting, at)
                gain = always.minus(find("random")) + "".join(always.marks)
                head = (setting.learner, str(setting.shot), "yes" if name == CLEAN else "no")
                rows.append((*head, str(updates), *four(find, clean=True), gain))
    return markdown_table(rows)


def _only_warm_up(seeds: dict[int, CellResult]) -> bool:
    return all(one.updates <= one.setting("strategy", "warmup") for one in seeds.values())


def few_classes() -> str:
    """16 classes, as they are and rotated, for every strategy alike."""
    rows: Rows = [
        ("learner", "shot", "classes", *STRATEGIES, "derts − random",
         "selecting in every round − random", "rotated − not, random")
    ]  # fmt: skip
    for scale in ("x0.3", "x0.6"):
        plain, rotated = (f"reproduce-table3-{scale}{end}" for end in ("", "-rotated"))
        for setting, at, _ in settings(rotated):
            for file, earlier, what in (
                (plain, f"earlier-table3-upright-{scale}-h200", "16"),
                (rotated, f"earlier-table3-{scale}-always-h200", "16 × 4 rotations"),
            ):
                find = of_file(file, setting, at)
                always = scores(earlier, setting, at, "derts").minus(find("random"))
                random = of_file(plain, setting, at)("random")
                gain = find("random").minus(random) if file == rotated else ""
                head = (setting.learner, str(setting.shot), what)
                rows.append((*head, *four(find, clean=True), always, gain))
    return markdown_table(rows)


def augmentation() -> str:
    """Swapped labels at the end, with and without augmentation and label smoothing."""
    rows: Rows = [
        ("learner, labels", "augmentation", "label smoothing", *STRATEGIES, "derts − random")
    ]
    for setting, at, _ in settings(TABLE4, 1.0):
        for name, augmented in ((TABLE4, "yes"), (NO_AUGMENTATION, "no"), (NO_SMOOTHING, "no")):
            find = of_file(name, setting, at)
            if find("random"):
                one = next(iter(results(name)[setting, at].values()))
                head = f"{setting.learner}, {swapped(setting)}", augmented
                smoothing = f"{one.setting('learner', 'smoothing'):g}"
                rows.append((*head, smoothing, *four(find, clean=False)))
    return markdown_table(rows)


def beside_the_paper() -> str:
    """Every result file of `derts reproduce`, ours beside theirs."""
    parts = []
    for file in _files():
        name, found, notes = load_results(file)
        report = make_report(
            name, cells(name), found, only_run=True, mark=lambda one: mark(one.code)
        )
        told = [f"`{_command(file, name, found, notes)}`", _other_recipe(found, notes)]
        if curves_file(file).exists():
            told.append(f"![{report.title}](figures/{file.stem}.png)")
        text = "\n\n".join(line for line in told if line)
        title = f"### {file.stem.removeprefix('reproduce-')}: {report.title}"
        parts.append(f"{title}\n\n{markdown_table(report.marked(), len(HEAD))}\n\n{text}\n")
    return "\n".join(parts).rstrip()


def _files() -> list[Path]:
    """Result files of `derts reproduce`, in the order of the tables."""
    files = (file for name in NAMES for file in sorted(RESULTS.glob(f"reproduce-{name}*.json")))
    return [file for file in files if not file.stem.endswith("-curves")]


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


def learners() -> str:
    """Random sampling with every learner."""
    rows: Rows = [
        ("learner", "seeds", "updates", "test", "validation", "untrained", "ms per update")
    ]
    runs = read("baseline-h200.json")["runs"]
    for name in dict.fromkeys(run["config"]["learner"]["name"] for run in runs):
        ours = [run for run in runs if run["config"]["learner"]["name"] == name]
        keys = ("validation_accuracy", "untrained_accuracy")
        means = (sum(run[key] for run in ours) / len(ours) for key in keys)
        median = sorted(run["ms_per_update"] for run in ours)[len(ours) // 2]
        rows.append(
            (
                name,
                str(len(ours)),
                f"{ours[0]['updates']} × {ours[0]['config']['meta_batch']} tasks",
                over_seeds([run["accuracy"] for run in ours]).shown() + mark(ours[0]["code"]),
                *(f"{mean:.2f}" for mean in means),
                f"{median:.1f}",
            )
        )
    return markdown_table(rows)


CASES = ("anil-none", "anil-tasks", "protonet-none", "protonet-tasks")


def estimates() -> str:
    """How well selections stand for their pool: relative error of its exact gradient."""
    found = [read(f"diagnosis-{case}-h200.json") for case in CASES]
    kinds = ("anil, clean", "anil, mislabelled", "protonet, clean", "protonet, mislabelled")
    rows: Rows = [("30% of the pool, by", *kinds)]
    for number, row in enumerate(found[0]["estimates"]):
        for weights in ("counts", "calibrated"):
            errors = (one["estimates"][number]["error"][weights] for one in found)
            rows.append((f"{row['estimate']}, {weights}", *(f"{error:.2f}" for error in errors)))
    random = (f"{one['random']['mean']:.2f} ± {one['random']['deviation']:.2f}" for one in found)
    rows.append(("a random subset", *random))
    return markdown_table(rows)


def noise_scores() -> str:
    """How well a score tells noisy tasks from clean ones, and what the automatic drop does."""
    rows: Rows = [("score", "learner", "AUROC", "dropped of noisy pools", "of clean pools")]
    for learner in ("anil", "protonet"):
        clean, noisy = (read(f"diagnosis-{learner}-{kind}-h200.json") for kind in ("none", "tasks"))
        for without, row in zip(clean["scores"], noisy["scores"], strict=True):
            shares = (f"{100 * one['dropped']:.1f}%" for one in (row, without))
            rows.append((row["score"], learner, f"{row['auroc']:.3f}", *shares))
    return markdown_table(rows)


# what the presets were when strategies-h200.json was made
THEN = {
    "derts": "derts, without votes, all images",
    "derts-few-images": "derts, without votes",
}


def strategies() -> str:
    """Every strategy's accuracy and cost with ANIL, noisy and clean."""
    found, runs = compared("strategies-h200.json"), read("strategies-h200.json")["runs"]
    rows: Rows = [
        ("strategy", MISLABELLED, "− random", "wrong labels trained on", "clean tasks", "− random",
         "ms per update", "of it selection")
    ]  # fmt: skip

    def mean(variant: str, key: Callable[[dict[str, Any]], float | None]) -> float | None:
        values = [key(run) for run in runs if run["variant"] == variant]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    for name in dict.fromkeys(variant.removesuffix(" clean") for _, variant in found):
        told = []
        for end in ("", " clean"):
            mine, random = found["anil", f"{name}{end}"], found["anil", f"random{end}"]
            told += [mine.shown(), "" if name == "random" else mine.minus(random)]
        wrong = mean(name, lambda run: run["noise"]["kept"])
        told.insert(2, "" if wrong is None else f"{100 * wrong:.1f}%")
        time = mean(f"{name} clean", lambda run: run["ms_per_update"]) or 0.0
        share = mean(f"{name} clean", lambda run: run["selection_share"]) or 0.0
        rows.append((THEN.get(name, name), *told, f"{time:.1f}", f"{100 * share:.0f}%"))
        if name == "random":
            rows += [
                ("random + votes", NOT_RUN, "", "", SAME_AS_RANDOM, "", NOT_RUN, ""),
                ("the paper's rule", NOT_RUN, "", "", NOT_RUN, "", NOT_RUN, ""),
            ]
    return markdown_table(rows)


def redundant() -> str:
    """Pools in which most tasks repeat each other; labels are clean."""
    rows: Rows = [("learner", "strategy", "accuracy", "− random", "rare tasks trained on")]
    for learner, file in (
        ("protonet", "redundant-pools-cpu.json"),
        ("anil", "redundant-pools-anil-cpu.json"),
    ):
        found, runs = compared(file), read(file)["runs"]
        for name in dict.fromkeys(variant for _, variant in found):
            mine = found[learner, name]
            gain = "" if name == "random" else mine.minus(found[learner, "random"])
            rare = [run["rare_share"] for run in runs if run["variant"] == name]
            share = f"{100 * sum(rare) / len(rare):.0f}%"
            rows.append((learner, name, mine.shown(), gain, share))
            if name == "random":
                rows.append((learner, "random + votes", SAME_AS_RANDOM, "", ""))
                rows.append((learner, "the paper's rule", NOT_RUN, "", ""))
    return markdown_table(rows)
