"""Tables of accuracy: README.md and docs/results.md.

Each has the columns random, random + votes, the paper's rule and derts, or a row for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from result_files import RESULTS, Cell, Scores, compared, read, table

from derts.paper.cells import Setting
from derts.paper.collect import Results, load_results
from derts.paper.report import SAME_AS_RANDOM

STRATEGIES = ("random", "random + votes", "the paper's rule", "derts")
TABLE4, CLEAN = "reproduce-table4-x0.25", "reproduce-table1-x0.3-augment"
NO_AUGMENTATION, NO_SMOOTHING = "earlier-table4-as-they-are-h200", "earlier-table4-anil-h200"
TASKS_NOISE = "noisy-tasks-h200.json"
WRONG_LABELS = "wrong-labels-h200.json"
FEW_IMAGES = "wrong-labels-few-images-h200.json"
WRONG = {
    "symmetric:0.2": "20% misplaced",
    "symmetric:0.4": "40% misplaced",
    "symmetric:0.6": "60% misplaced",
    "pair:0.2": "20% misplaced (pairs)",
    "pair:0.4": "40% misplaced (pairs)",
}
LEARNERS = "anil", "protonet"
MISLABELLED = "60% of tasks mislabelled"
Find = Callable[[str], Scores]


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


def four(find: Find, same: bool, interval: bool = True) -> tuple[Cell, ...]:
    """The columns of the four strategies, and derts − random.

    same  whether an image has the same label in all tasks, so that votes change none
    """
    random, votes, paper, derts = map(find, ("random", "random-votes", "paper", "derts"))
    of_votes = SAME_AS_RANDOM if same and not votes else votes.shown(interval)
    others = (paper.shown(interval), derts.shown(interval))
    return random.shown(interval), of_votes, *others, derts.minus(random)


def agree(name: str) -> bool:
    """Whether an image has the same label in all tasks of a row of this name."""
    return "misplaced" in name


def of_file(name: str, setting: Setting, at: float) -> Find:
    return lambda strategy: scores(name, setting, at, strategy)


def of_tasks_noise(learner: str, suffix: str = "") -> Find:
    found = compared(TASKS_NOISE)
    return lambda strategy: found.get((learner, f"{strategy}{suffix}"), Scores())


def of_wrong_labels(learner: str, noise: str, file: str = WRONG_LABELS) -> Find:
    """What wrong labels of the data set itself leave of a strategy; `clean` are the true ones."""

    def find(variant: str) -> Scores:
        found = Scores()
        for row in read(file)["rows"]:
            same = row["noise"] == noise or variant == "clean"
            if same and (row["learner"], row["variant"]) == (learner, variant):
                found.add(row["seed"], row["accuracy"], row["code"])
        return found

    return find


def swapped(setting: Setting) -> str:
    return f"{100 * setting.noise:.0f}% of labels swapped" if setting.noise else "clean"


def wrong() -> Iterator[tuple[str, int, Find, Scores]]:
    """All kinds of wrong labels: in words, updates, the strategies, random with clean labels."""
    for setting, at, updates in settings(TABLE4, 1.0):
        clean = scores(CLEAN, replace(setting, noise=0.0, updates=10_000), at, "random")
        name = f"{setting.learner}, {swapped(setting)}"
        yield name, updates, of_file(TABLE4, setting, at), clean
    for learner in LEARNERS:
        clean = of_tasks_noise(learner, " clean")("random")
        yield f"{learner}, {MISLABELLED}", 500, of_tasks_noise(learner), clean
    for noise, words in WRONG.items():
        for learner in LEARNERS:
            find = of_wrong_labels(learner, noise)
            if find("random"):
                yield f"{learner}, {words}", 3000, find, find("clean")
    for learner in LEARNERS:
        find = of_wrong_labels(learner, "symmetric:0.4", FEW_IMAGES)
        words = f"{WRONG['symmetric:0.4']}, 60 images a class"
        yield f"{learner}, {words}", 1000, find, find("clean")


def readme() -> str:
    """At the end of training: wrong labels of all kinds."""
    rows: list[tuple[Cell, ...]] = [
        ("mini-ImageNet 5-way 5-shot, CNN4-64", *STRATEGIES, "derts − random")
    ]
    for name, _, find, _ in wrong():
        rows.append((name, *four(find, agree(name), interval=False)))
    hidden = "25%", MISLABELLED, "(pairs)"
    text = table(rows, lambda name: not any(words in name for words in hidden))
    text = text.replace(" | ", "|").replace("| ", "|").replace(" |", "|")
    return (
        f"{text}\n\nAccuracy in % on 600 clean test tasks after 3,000 updates (60 images a class:\n"
        "1,000), three seeds. Misplaced: in a wrong class of the data set. ±: 95% interval of the\n"
        f"paired difference (after Holm's correction for {len(rows) - 1} such rows; bold: 0 is\n"
        "outside)."
    )


def noisy(kind: str = "") -> str:
    """At the end of training with wrong labels, and how much of their cost is won back.

    `kind` is a part of the names of the rows that are shown.
    """
    stopped = ["random, best weights"] if kind else []
    rows: list[tuple[Cell, ...]] = [
        ("learner, labels", "updates", "random, clean labels", *stopped, *STRATEGIES,
         "derts − random", "of the cost won back")
    ]  # fmt: skip
    for name, updates, find, clean in wrong():
        random, derts = find("random").mean, find("derts").mean
        share = f"{100 * (derts - random) / (clean.mean - random):.0f}%"
        best = [find("best").shown()] if kind else []
        rows.append((name, str(updates), clean.shown(), *best, *four(find, agree(name)), share))
    return table(rows, lambda name: kind in name)


def parts() -> str:
    """Votes and selection apart, on validation classes."""
    rows: list[tuple[Cell, ...]] = [
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
    return table(rows)


def clean() -> str:
    """Clean tasks, as far as each run went: today's derts, and one that always selects."""
    rows: list[tuple[Cell, ...]] = [
        ("learner", "shot", "augmentation", "updates", *STRATEGIES, "derts − random",
         "paper − random", "always selecting − random")
    ]  # fmt: skip
    for name in ("reproduce-table1", CLEAN):
        earlier = f"{name.replace('reproduce', 'earlier')}-always-h200"
        furthest = {setting: (at, updates) for setting, at, updates in settings(name)}
        for setting, (at, updates) in furthest.items():
            find = of_file(name, setting, at)
            always = scores(earlier, setting, at, "derts")
            head = (setting.learner, str(setting.shot), "yes" if name == CLEAN else "no")
            gains = (find("paper").minus(find("random")), always.minus(find("random")))
            rows.append((*head, str(updates), *four(find, same=True), *gains))
    return table(rows)


def few_classes() -> str:
    """16 classes, as they are and rotated, for every strategy alike."""
    rows: list[tuple[Cell, ...]] = [
        ("learner", "shot", "classes", *STRATEGIES, "derts − random",
         "always selecting − random", "rotated − not, random")
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
                gain: Cell = find("random").minus(random) if file == rotated else ""
                head = (setting.learner, str(setting.shot), what)
                rows.append((*head, *four(find, same=True), always, gain))
    return table(rows)


def augmentation() -> str:
    """Swapped labels at the end, with and without augmentation and label smoothing."""
    rows: list[tuple[Cell, ...]] = [
        ("learner, labels", "augmentation", "label smoothing", *STRATEGIES, "derts − random")
    ]
    for setting, at, _ in settings(TABLE4, 1.0):
        for name, augmented in ((TABLE4, "yes"), (NO_AUGMENTATION, "no"), (NO_SMOOTHING, "no")):
            find = of_file(name, setting, at)
            if find("random"):
                one = next(iter(results(name)[setting, at].values()))
                head = f"{setting.learner}, {swapped(setting)}", augmented
                smoothing = f"{one.setting('learner', 'smoothing'):g}"
                rows.append((*head, smoothing, *four(find, same=False)))
    return table(rows)
