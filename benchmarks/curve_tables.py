"""Tables of docs/research-log.md that show accuracy along the way of training."""

from __future__ import annotations

from collections.abc import Callable

from result_files import Rows, Values, read

from derts.statistics import over_seeds

ANEW = "wrong-labels-seen-anew-cpu.json"
CURVES = "validation-curves-h200.json"


def sixteen_rows() -> Rows:
    """Training and test accuracy along the way of the first runs of table 3, over seeds."""
    runs = read("sixteen-classes-curves-h200.json")["runs"]
    points = list(runs[0]["test"])
    heads = [f"{kind}, {int(at):,}" for kind in ("training", "test") for at in points]
    rows: Rows = [("learner", "strategy", "seeds", *heads)]
    for learner in ("anil", "protonet"):
        for strategy in ("random", "paper", "derts"):
            mine = [r for r in runs if (r["learner"], r["strategy"]) == (learner, strategy)]
            means = [
                sum(run[kind][at] for run in mine) / len(mine)
                for kind in ("training", "test")
                for at in points
            ]
            rows.append((learner, strategy, str(len(mine)), *(f"{mean:.1f}" for mean in means)))
    return rows


def few_rows() -> Rows:
    """Accuracy on validation classes along the way, with 16 classes."""
    return _curves("few-classes-cpu.json", {"learner": "learner", "variant": "tasks and images"})


def few_32_rows() -> Rows:
    """The same with 32 classes."""
    return _curves("few-classes-32-cpu.json", {"learner": "learner", "variant": "tasks and images"})


def anew_rows() -> Rows:
    """The same where labels are swapped, images as they are and seen anew."""
    names = ("learner", "tasks", "images", "strategy", "seed")
    return _curves(ANEW, {name: name for name in names}, lambda run: run["tasks"] != "clean")


def clean_anew_rows() -> Rows:
    """Clean tasks of images seen anew."""
    names = ("learner", "strategy", "seed")
    return _curves(ANEW, {name: name for name in names}, lambda run: run["tasks"] == "clean")


def _curves(
    file: str, names: dict[str, str], wanted: Callable[[Values], bool] = lambda run: True
) -> Rows:
    runs = [run for run in read(file)["runs"] if wanted(run)]
    looks = list(runs[0]["validation"])
    rows: Rows = [(*names.values(), *(f"{int(look):,}" for look in looks))]
    for run in runs:
        values = [f"{run['validation'][look]:.1f}" for look in looks]
        rows.append((*(str(run[name]) for name in names), *values))
    return rows


def validation_rows() -> Rows:
    """Clean runs on a GPU: paired differences to random sampling on validation classes."""
    runs = read(CURVES)["runs"]
    rows: Rows = [
        ("learner", "classes", "shot", "strategy", "seeds", "over all looks", "last", "best")
    ]
    groups: dict[tuple[object, ...], dict[int, Values]] = {}
    for run in runs:
        key = (run["learner"], run["classes"], run["shot"], run["turned"], run["strategy"])
        groups.setdefault(key, {})[run["seed"]] = run["validation"]
    for (learner, classes, shot, turned, strategy), mine in groups.items():
        if strategy == "random":
            continue
        random = groups[learner, classes, shot, turned, "random"]
        pairs = [(looks, random[seed]) for seed, looks in sorted(mine.items())]
        told = [
            over_seeds([of(looks) - of(others) for looks, others in pairs]).shown("+")
            for of in (_mean, _last, _best)
        ]
        place = f"{classes or 'all'}{', turned' if turned else ''}"
        rows.append((str(learner), place, str(shot), str(strategy), str(len(pairs)), *told))
    return rows


def even_rows() -> Rows:
    """How even pools of tasks are along training, the least and the most of ten."""
    rows: Rows = [("tasks", "learner", "at first", "later", "", "last")]
    for run in read("even-pools-cpu.json")["runs"]:
        looks = run["evenness"].items()
        told = [f"{values[0]:.2f} to {values[-1]:.2f} ({int(at):,})" for at, values in looks]
        rows.append((run["kind"], run["learner"], *told))
    return rows


def _mean(looks: Values) -> float:
    return float(sum(looks.values())) / len(looks)


def _last(looks: Values) -> float:
    return float(looks[max(looks, key=int)])


def _best(looks: Values) -> float:
    return float(max(looks.values()))


BLOCKS: dict[str, Callable[[], Rows]] = {
    "sixteen": sixteen_rows,
    "few": few_rows,
    "few-32": few_32_rows,
    "anew": anew_rows,
    "clean-anew": clean_anew_rows,
    "validation": validation_rows,
    "even": even_rows,
}
