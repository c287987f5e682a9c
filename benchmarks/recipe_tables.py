"""The paper's cells by one recipe and by another, test classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from result_files import RESULTS, Rows

from derts.paper.outcomes import Outcome, Outcomes, load_outcomes
from derts.paper.recipe import Setting
from derts.statistics import Estimate, over_seeds, paired_difference

BySeed = dict[int, Outcome]
AS_THEY_ARE = "earlier-table4-as-they-are-h200"
CLEAN_UPDATES = 10_000  # of table 1 in full


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
    """Table 3 with and without turned classes, test classes: random, and derts that selects."""
    rows: Rows = [
        ("learner", "shot", "random", "derts − random", "random, turned", "derts, turned",
         "derts, turned − random, turned", "random, turned − random")
    ]  # fmt: skip
    for scale in ("x0.3", "x0.6"):
        upright = _outcomes(f"earlier-table3-upright-{scale}-h200")
        turned = _outcomes(f"reproduce-table3-{scale}-turned")
        always = _outcomes(f"earlier-table3-{scale}-always-h200")
        for setting, fraction in turned:
            if setting.strategy != "random":
                continue
            derts = _with(setting, "derts")
            random, random_turned = (found[setting, fraction] for found in (upright, turned))
            selected, selected_turned = (found[derts, fraction] for found in (upright, always))
            rows.append(
                (
                    setting.learner,
                    str(setting.shot),
                    _shown(random),
                    _paired(selected, random).shown("+"),
                    *(_shown(outcomes) for outcomes in (random_turned, selected_turned)),
                    _paired(selected_turned, random_turned).shown("+"),
                    _paired(random_turned, random).shown("+"),
                )
            )
    return rows


def where_it_pays_rows() -> Rows:
    """Clean cells of tables 1 and 3: derts that always selects and today's, against random."""
    rows: Rows = [
        ("learner", "shot", "classes", "images", "updates", "always − random", "today's − random",
         "same answers")
    ]  # fmt: skip
    files = {"table1": "table1", "table1-x0.3-augment": "table1-x0.3-augment",
             "table3-x0.3": "table3-x0.3-turned", "table3-x0.6": "table3-x0.6-turned"}  # fmt: skip
    for before, since in files.items():
        always, now = _outcomes(f"earlier-{before}-always-h200"), _outcomes(f"reproduce-{since}")
        for (setting, fraction), then in always.items():
            random = now[_with(setting, "random"), fraction]
            derts = now[setting, fraction]
            if all(one.updates <= one.config["strategy"]["warmup"] for one in then.values()):
                continue
            anew = any(one.seen_anew for one in then.values())
            same = sum(one.correct == random[seed].correct for seed, one in derts.items())
            rows.append(
                (
                    setting.learner,
                    str(setting.shot),
                    f"{setting.classes}, turned" if setting.classes else "all",
                    "seen anew" if anew else "as they are",
                    str(then[0].updates),
                    _paired(then, random).shown("+"),
                    _paired(derts, random).shown("+"),
                    f"{same} of {len(derts)} seeds",
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


BLOCKS: dict[str, Callable[[], Rows]] = {
    "turned": turned_rows,
    "where-it-pays": where_it_pays_rows,
    "smoothed": smoothed_rows,
    "seen-anew": seen_anew_rows,
    "best-random": best_random_rows,
    "won-back": won_back_rows,
}
