"""The tables of docs/research-log.md: what was tried."""

from __future__ import annotations

from collections.abc import Callable

from result_files import Rows, Values, read

from derts.comparison import Comparison
from derts.statistics import over_seeds


def tried_rows() -> Rows:
    """What was tried on validation classes, against random sampling and against derts."""
    files = ("what-wins-validation-h200.json", "few-images-validation-h200.json",
             "doubt-validation-h200.json")  # fmt: skip
    runs: dict[tuple[str, str, int], Values] = {}
    for name in files:
        for run in read(name)["runs"]:
            runs.setdefault((run["learner"], run["variant"], run["seed"]), run)
    rows: Rows = [("learner", "tasks", "variant", "seeds", "accuracy", "− random", "− derts")]
    kinds = {"clean": " clean", "60% noisy": "", "40% swapped": " swap40"}
    for learner in ("anil", "protonet"):
        found = Comparison([run for run in runs.values() if run["learner"] == learner])
        for kind, suffix in kinds.items():
            plain = [name.removesuffix(" clean").removesuffix(" swap40") for name in found.variants]
            for name in dict.fromkeys(plain):
                if name + suffix not in found.variants:
                    continue
                accuracies = list(found.accuracies(name + suffix).values())
                mean = over_seeds(accuracies).mean
                cells = []
                for other in ("random", "derts"):
                    both = other != name and other + suffix in found.variants
                    difference = found.difference(name + suffix, other + suffix) if both else None
                    cells.append(difference.shown("+") if difference is not None else "")
                count = str(len(accuracies))
                rows.append((learner, kind, name, count, f"{mean:.2f}", *cells))
    return rows


def choices_rows() -> Rows:
    """Choices among clean tasks, of glyphs and of photos."""
    rows: Rows = [("learner", "choice", "glyphs", "− random", "photos", "− random")]
    glyphs, photos = (
        read(name)["runs"] for name in ("clean-choices-cpu.json", "clean-choices-photos-cpu.json")
    )
    for learner in dict.fromkeys(run["learner"] for run in glyphs):
        both = [
            Comparison([run for run in runs if run["learner"] == learner])
            for runs in (glyphs, photos)
        ]
        for name in both[0].variants:
            cells: list[str] = []
            for found in both:
                accuracies = list(found.accuracies(name).values())
                cells.append(str(over_seeds(accuracies)) if accuracies else "")
                compared = accuracies and name != "random"
                cells.append(found.difference(name, "random").shown("+") if compared else "")
            rows.append((learner, name, *cells))
    return rows


def votes_rows() -> Rows:
    """Votes on validation classes, in 400 updates and in 3,000."""
    rows: Rows = [("learner", "updates", "tasks", "variant", "seeds", "accuracy", "− random")]
    files = (
        "votes-validation-h200.json",
        "softening-validation-h200.json",
        "long-anil-validation-h200.json",
        "long-protonet-validation-h200.json",
    )
    kinds = {
        "clean": " clean",
        "60% noisy": "",
        "25% swapped": " swap25",
        "40% swapped": " swap40",
    }
    for file in files:
        runs = read(file)["runs"]
        for learner in dict.fromkeys(run["learner"] for run in runs):
            found = Comparison([run for run in runs if run["learner"] == learner])
            for kind, suffix in kinds.items():
                ends = [name for name in found.variants if _suffix(name) == suffix]
                for variant in ends:
                    accuracies = list(found.accuracies(variant).values())
                    other = "random" + suffix
                    both = variant != other and other in found.variants
                    name = VOTES_NAMES.get(file, {}).get(variant.removesuffix(suffix))
                    rows.append(
                        (
                            learner,
                            str(runs[0]["updates"]),
                            kind,
                            name or variant.removesuffix(suffix),
                            str(len(accuracies)),
                            f"{over_seeds(accuracies).mean:.2f}",
                            found.difference(variant, other).shown("+") if both else "",
                        )
                    )
    return rows


def _suffix(variant: str) -> str:
    ends = (" clean", " swap25", " swap40")
    return next((end for end in ends if variant.endswith(end)), "")


# what presets were called when a file was made
VOTES_NAMES = {
    "votes-validation-h200.json": {
        "derts": "labels as given, all images",
        "derts-votes": "votes, all images",
        "derts-bank": "labels as given, feature bank",
    },
    "long-anil-validation-h200.json": {
        "derts": "votes",
        "derts-hardest": "votes, hardest tasks",
        "derts-smooth": "votes, smoothing 0.3",
        "derts-smooth50": "votes, smoothing 0.5",
        "derts-hardest-smooth": "votes, hardest tasks, smoothing 0.3",
        "derts-query-smooth": "votes on query labels, smoothing 0.3",
        "derts-soften0": "votes",
        "derts-soften10": "votes, smoothing 0.125",
        "random-smooth": "random, smoothing 0.3",
        "derts-query-votes": "votes on query labels",
        "query-votes-alone": "votes on query labels, tasks at random",
    },
}
VOTES_NAMES["softening-validation-h200.json"] = {
    "derts-soften0": "votes",
    "derts-soften10": "votes, smoothing 0.125",
    "derts-soften25": "votes, smoothing 0.31",
    "derts-soften40": "votes, smoothing 0.5",
}
VOTES_NAMES["long-protonet-validation-h200.json"] = VOTES_NAMES["long-anil-validation-h200.json"]


def swapped_rows() -> Rows:
    """Doubt inside tasks where labels are swapped, on glyphs."""
    return Comparison(read("swapped-labels-cpu.json")["runs"]).table("random")


def clean_rows() -> Rows:
    """Choices among clean tasks, of other shots and classes; one seed each."""
    names = ("random", "derts", "derts-hardest")
    rows: Rows = [("learner", "shot", "classes", "updates", *names)]
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for run in read("clean-validation-h200.json")["runs"]:
        tasks = run["config"]["tasks"]
        classes = tasks["class_budget"] or "all"
        setting = (run["learner"], str(tasks["shot"]), str(classes), str(run["updates"]))
        found.setdefault(setting, {})[run["variant"].removesuffix(" clean")] = run["accuracy"]
    rows += [
        (*setting, *(f"{made[name]:.2f}" for name in names)) for setting, made in found.items()
    ]
    return rows


def redundant_rows() -> Rows:
    """Pools in which most tasks repeat each other."""
    rows: Rows = [("learner", "strategy", "accuracy", "− random", "of its training, rare tasks")]
    files = {"protonet": "redundant-pools-cpu.json", "anil": "redundant-pools-anil-cpu.json"}
    for learner, file in files.items():
        found = Comparison(read(file)["runs"])
        for name in found.variants:
            accuracy = str(over_seeds(list(found.accuracies(name).values())))
            difference = "" if name == "random" else found.difference(name, "random").shown("+")
            share = found.mean(name, lambda run: run["rare_share"])
            assert share is not None
            rows.append((learner, name, accuracy, difference, f"{100 * share:.0f}%"))
    return rows


def soft_rows() -> Rows:
    """Label smoothing with both learners, on glyphs."""
    runs = read("soft-targets-cpu.json")["runs"]
    shares = (0.0, 0.5)
    rows: Rows = [("learner", "tasks", *(f"smoothing {share:g}" for share in shares), "difference")]
    kinds = {"random": "random, swapped", "derts": "derts, swapped"}
    kinds["random, clean tasks"] = "random, clean"
    for learner in dict.fromkeys(run["learner"] for run in runs):
        found = Comparison([run for run in runs if run["learner"] == learner])
        for name, kind in kinds.items():
            hard, soft = (f"{name}, smoothing {share:g}" for share in shares)
            cells = [str(over_seeds(list(found.accuracies(one).values()))) for one in (hard, soft)]
            rows.append((learner, kind, *cells, found.difference(soft, hard).shown("+")))
    return rows


BLOCKS: dict[str, Callable[[], Rows]] = {
    "tried": tried_rows,
    "swapped": swapped_rows,
    "votes": votes_rows,
    "clean": clean_rows,
    "choices": choices_rows,
    "redundant": redundant_rows,
    "soft": soft_rows,
}
