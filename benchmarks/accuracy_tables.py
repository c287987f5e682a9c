"""Tables of accuracy: README.md and docs/results.md.

Each has the columns random, random + votes, the paper's rule and derts, or a row for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from result_files import RESULTS, Rows, Scores, compared, holm, read

from derts.paper.cells import Setting
from derts.paper.collect import CellResult, Results, load_results
from derts.paper.report import SAME_AS_RANDOM
from derts.report.tables import markdown_table

STRATEGIES = ("random", "random + votes", "the paper's rule", "derts")
TABLE4, CLEAN = "reproduce-table4-x0.25", "reproduce-table1-x0.3-augment"
NO_AUGMENTATION, NO_SMOOTHING = "earlier-table4-as-they-are-h200", "earlier-table4-anil-h200"
TASKS_NOISE = "noisy-tasks-h200.json"
WRONG_LABELS = "wrong-labels-h200.json"
LEARNERS = "anil", "protonet"
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
            for learner in LEARNERS:
                told = four(of_tasks_noise(learner), clean=False, interval=False)
                rows.append((f"{learner}, {MISLABELLED} \\*", *told))
            for learner in LEARNERS:
                find = of_wrong_labels(learner, "symmetric:0.4")
                told = four(find, clean=False, interval=False)
                rows.append((f"{learner}, 40% of labels wrong in the data set", *told))
        for setting, at, _ in settings(name, 1.0):
            if setting.noise == 0.25:
                continue
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


def of_wrong_labels(learner: str, noise: str) -> Callable[[str], Scores]:
    """What wrong labels of the data set itself leave of a strategy."""

    def find(variant: str) -> Scores:
        found = Scores()
        for row in read(WRONG_LABELS)["rows"]:
            if (row["learner"], row["noise"], row["variant"]) == (learner, noise, variant):
                found.add(row["seed"], row["accuracy"], row["code"])
        return found

    return find


def wrong_labels() -> str:
    """Wrong labels of the data set itself, and how much of their cost is won back."""
    rows: Rows = [
        ("learner, wrong labels", "updates", "random, clean labels", *STRATEGIES, "derts − random",
         "of the cost won back")
    ]  # fmt: skip
    for setting, at, updates in settings(CLEAN, 1.0):
        find = of_wrong_labels(setting.learner, "symmetric:0.4")
        without = scores(CLEAN, setting, at, "random")
        rows.append(_won_back(f"{setting.learner}, 40% symmetric", updates, without, find))
    return markdown_table(rows)


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
