"""Tables of learners, estimates and strategies: docs/results.md and docs/strategies.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accuracy_tables import MISLABELLED
from result_files import NOT_RUN, RESULTS, Cell, Rows, compared, mark, read, table

from derts.paper.report import SAME_AS_RANDOM
from derts.report.tables import markdown_table
from derts.statistics import over_seeds

PHOTOS = {"mini32": "mini-ImageNet at 32×32", "tiered32": "tiered-ImageNet's subset at 32×32"}


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
    rows: list[tuple[Cell, ...]] = [
        ("strategy", MISLABELLED, "− random", "wrong labels trained on", "clean tasks", "− random",
         "ms per update", "of it selection")
    ]  # fmt: skip

    def mean(variant: str, key: Callable[[dict[str, Any]], float | None]) -> float | None:
        values = [key(run) for run in runs if run["variant"] == variant]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    for name in dict.fromkeys(variant.removesuffix(" clean") for _, variant in found):
        told: list[Cell] = []
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
    return table(rows)


def redundant() -> str:
    """Pools in which most tasks repeat each other; labels are clean."""
    rows: list[tuple[Cell, ...]] = [
        ("learner", "strategy", "accuracy", "− random", "rare tasks trained on")
    ]
    for learner, file in (
        ("protonet", "redundant-pools-cpu.json"),
        ("anil", "redundant-pools-anil-cpu.json"),
    ):
        found, runs = compared(file), read(file)["runs"]
        for name in dict.fromkeys(variant for _, variant in found):
            mine = found[learner, name]
            gain: Cell = "" if name == "random" else mine.minus(found[learner, "random"])
            rare = [run["rare_share"] for run in runs if run["variant"] == name]
            share = f"{100 * sum(rare) / len(rare):.0f}%"
            rows.append((learner, name, mine.shown(), gain, share))
            if name == "random":
                rows.append((learner, "random + votes", SAME_AS_RANDOM, "", ""))
                rows.append((learner, "the paper's rule", NOT_RUN, "", ""))
    return table(rows)


def redundant_photos() -> str:
    """The same of photos, test classes: one row for each data set and learner."""
    rows: list[tuple[Cell, ...]] = [
        ("photos", "learner", "random", "derts", "derts − random", "every task as likely − random")
    ]
    for file in sorted(RESULTS.glob("redundant-photos-*-cpu.json")):
        found = compared(file.name)
        learner = next(iter(found))[0]
        random, derts = found[learner, "random"], found[learner, "derts"]
        even = found[learner, "random, every task as likely"].minus(random)
        name = PHOTOS[read(file.name)["runs"][0]["config"]["data"]]
        rows.append((name, learner, random.shown(), derts.shown(), derts.minus(random), even))
    return table(rows)


def heads() -> str:
    """What ANIL's `logit-theta` tells, by how the head starts; means over seeds."""
    rows: Rows = [
        ("tasks", "update", "head", "mean norm", "rank correlation with exact norms",
         "error of a subset / random", "AUROC of wrong tasks by norm")
    ]  # fmt: skip
    found: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in read("head-readings-cpu.json")["results"]:
        if row["estimate"] == "logit-theta":
            found.setdefault((row["noise"], row["update"], row["head"]), []).append(row)
    for (noise, update, head), each in sorted(found.items()):

        def mean(name: str, of: list[dict[str, Any]] = each) -> float:
            return float(sum(row[name] for row in of)) / len(of)

        wrong = f"{mean('auroc'):.2f}" if "auroc" in each[0] else ""
        error = mean("error") / mean("random_error")
        numbers = f"{mean('norm'):.2g}", f"{mean('rank_correlation'):+.2f}", f"{error:.2f}"
        rows.append((noise, str(update), head, *numbers, wrong))
    return table(rows)
