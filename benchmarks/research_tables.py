"""The tables of docs/research-log.md: what was tried, and what came of it on test classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from result_files import RESULTS, Rows, Values, read

from derts.comparison import Comparison
from derts.reproduce.outcomes import Outcome, Outcomes, load_outcomes
from derts.reproduce.recipe import Setting
from derts.statistics import Estimate, over_seeds, paired_difference

BySeed = dict[int, Outcome]
AS_THEY_ARE = "earlier-table4-as-they-are-h200"
CLEAN_UPDATES = 10_000  # of table 1 in full


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


def smoothed_rows() -> Rows:
    """Table 4 with ANIL before and since it smooths its targets, test classes."""
    before, since = (_outcomes(name) for name in ("earlier-table4-anil-h200", AS_THEY_ARE))
    rows: Rows = [
        ("wrong labels", "strategy", "updates", "smoothing 0", "smoothing 0.5", "difference",
         "smoothing 0.5 − random at smoothing 0")
    ]  # fmt: skip
    for (setting, fraction), seeds in before.items():
        now, random = since[setting, fraction], before[_with(setting, "random"), fraction]
        rows.append(
            (
                f"{100 * setting.noise:.0f}%",
                setting.strategy,
                str(seeds[0].updates),
                *(_shown(outcomes) for outcomes in (seeds, now)),
                _paired(now, seeds).shown("+"),
                _paired(now, random).shown("+"),
            )
        )
    return rows


def seen_anew_rows() -> Rows:
    """Table 4 before and since its images are seen anew, test classes: random and derts."""
    before, since = _outcomes(AS_THEY_ARE), _outcomes("reproduce-table4-x0.25")
    rows: Rows = [
        ("learner", "wrong labels", "updates", "random, as they are", "random, seen anew",
         "derts − random, as they are", "derts − random, seen anew",
         "derts, seen anew − random, as they are")
    ]  # fmt: skip
    for setting, fraction in since:
        if setting.strategy != "random":
            continue
        random, derts = (_with(setting, name) for name in ("random", "derts"))
        then, now = before[random, fraction], since[random, fraction]
        derts_now = since[derts, fraction]
        rows.append(
            (
                setting.learner,
                f"{100 * setting.noise:.0f}%",
                str(now[0].updates),
                *(_shown(outcomes) for outcomes in (then, now)),
                _paired(before[derts, fraction], then).shown("+"),
                _paired(derts_now, now).shown("+"),
                _paired(derts_now, then).shown("+"),
            )
        )
    return rows


def turned_rows() -> Rows:
    """Table 3 with and without turned classes, test classes: random and derts."""
    rows: Rows = [
        ("learner", "shot", "random", "derts", "derts − random", "random, turned", "derts, turned",
         "derts, turned − random, turned", "random, turned − random", "derts, turned − random")
    ]  # fmt: skip
    for scale in ("x0.3", "x0.6"):
        upright = _outcomes(f"earlier-table3-upright-{scale}-h200")
        turned = _outcomes(f"reproduce-table3-{scale}-turned")
        for setting, fraction in turned:
            if setting.strategy != "random":
                continue
            random, derts, random_turned, derts_turned = (
                found[_with(setting, name), fraction]
                for found in (upright, turned)
                for name in ("random", "derts")
            )
            rows.append(
                (
                    setting.learner,
                    str(setting.shot),
                    *(_shown(outcomes) for outcomes in (random, derts)),
                    _paired(derts, random).shown("+"),
                    *(_shown(outcomes) for outcomes in (random_turned, derts_turned)),
                    _paired(derts_turned, random_turned).shown("+"),
                    _paired(random_turned, random).shown("+"),
                    _paired(derts_turned, random).shown("+"),
                )
            )
    return rows


def best_random_rows() -> Rows:
    """Table 4 at its end: derts, images seen anew, against each of ANIL's random samplings."""
    derts = _outcomes("reproduce-table4-x0.25")
    recipes = {
        "images seen anew, smoothing 0.5": "reproduce-table4-x0.25",
        "images as they are, smoothing 0.5": AS_THEY_ARE,
        "images as they are, smoothing 0": "earlier-table4-anil-h200",
    }
    rows: Rows = [("wrong labels", "random sampling of", "accuracy", "derts − it")]
    for setting, fraction in derts:
        if (setting.learner, setting.strategy, fraction) != ("anil", "derts", 1.0):
            continue
        for name, file in recipes.items():
            random = _outcomes(file)[_with(setting, "random"), fraction]
            difference = _paired(derts[setting, fraction], random).shown("+")
            rows.append((f"{100 * setting.noise:.0f}%", name, _shown(random), difference))
    return rows


def won_back_rows() -> Rows:
    """What swapped labels cost random sampling of table 4, and what derts wins back of it."""
    clean, noisy = (
        _outcomes(f"reproduce-{name}") for name in ("table1-x0.3-augment", "table4-x0.25")
    )
    rows: Rows = [
        ("learner", "wrong labels", "random, clean", "random", "derts", "cost", "won back", "share",
         "share by seed")
    ]  # fmt: skip
    for setting, fraction in noisy:
        if setting.strategy != "random" or fraction < 1:
            continue
        without = clean[replace(setting, noise=0.0, updates=CLEAN_UPDATES), fraction]
        random, derts = (noisy[_with(setting, name), fraction] for name in ("random", "derts"))
        assert without[0].updates == random[0].updates
        cost, won = _paired(without, random), _paired(derts, random)
        shares = [
            (derts[seed].accuracy - one.accuracy) / (without[seed].accuracy - one.accuracy)
            for seed, one in sorted(random.items())
        ]
        rows.append(
            (
                setting.learner,
                f"{100 * setting.noise:.0f}%",
                *(_shown(outcomes) for outcomes in (without, random, derts)),
                cost.shown(),
                won.shown(),
                f"{100 * won.mean / cost.mean:.0f}%",
                ", ".join(f"{100 * share:.0f}" for share in shares),
            )
        )
    return rows


def _outcomes(name: str) -> Outcomes:
    return load_outcomes(RESULTS / f"{name}.json")[1]


def _with(setting: Setting, strategy: str) -> Setting:
    return replace(setting, strategy=strategy)


def _shown(outcomes: BySeed) -> str:
    return over_seeds([one.accuracy for one in outcomes.values()]).shown()


def _paired(first: BySeed, second: BySeed) -> Estimate:
    """The mean difference over seeds, which must be the same."""
    assert sorted(first) == sorted(second)
    values = [[outcomes[seed].accuracy for seed in sorted(first)] for outcomes in (first, second)]
    return paired_difference(*values)


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
    found = Comparison(read("redundant-pools-cpu.json")["runs"])
    rows: Rows = [("strategy", "accuracy", "− random", "of its training, rare tasks")]
    for name in found.variants:
        accuracy = str(over_seeds(list(found.accuracies(name).values())))
        difference = "" if name == "random" else found.difference(name, "random").shown("+")
        share = found.mean(name, lambda run: run["rare_share"])
        assert share is not None
        rows.append((name, accuracy, difference, f"{100 * share:.0f}%"))
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
    "turned": turned_rows,
    "choices": choices_rows,
    "redundant": redundant_rows,
    "soft": soft_rows,
    "smoothed": smoothed_rows,
    "seen-anew": seen_anew_rows,
    "best-random": best_random_rows,
    "won-back": won_back_rows,
}
