"""What run folders tell: a RunHistory per folder, in groups that differ in the seed alone."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from derts.clock import training_seconds
from derts.config import TrainConfig
from derts.config_file import as_values
from derts.errors import DertsError, say
from derts.files import is_locked
from derts.selection.round_record import RoundRecord
from derts.statistics import over_seeds, paired_by_seed
from derts.training.result import Result, summarise
from derts.training.run_folder import Event, Run

KEPT_COLUMN = "wrong labels kept"
CHOSEN = {
    "facility-location": "Tasks were selected by facility location",
    "random": "Tasks were drawn at random, because selecting does not pay here",
    "random-votes": "Tasks were drawn at random from the pool, by their voted labels",
    "uniform": "Tasks were drawn at random from the pool",
    "balanced": "",  # told by the part balance
}


class RunHistory:
    """One run folder, read."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.config = run.config
        self.events = list(run.events())
        self.result = run.result()

    @property
    def name(self) -> str:
        return self.run.path.resolve().name

    def named(self, event: str) -> list[Event]:
        return [found for found in self.events if found.get("event") == event]

    @property
    def last_update(self) -> int:
        return max((int(event["update"]) for event in self.named("update")), default=0)

    @property
    def status(self) -> str:
        """finished, or how far it is, and whether a process is at it."""
        if self.result is not None:
            return "finished"
        now = "running" if is_locked(self.run.path) else "stopped"
        return f"{now} at update {self.last_update} of {self.config.updates}"

    @property
    def reached(self) -> str:
        """Accuracy and interval; nothing while the run is not finished."""
        found = self.result
        return f"{found['accuracy']:.2f} ± {found['interval']:.2f}" if found else ""

    @property
    def newest_round(self) -> RoundRecord | None:
        """The last round of which every task is kept."""
        files = self.run.round_files()
        return RoundRecord.load(files[-1]) if files else None

    @cached_property
    def summary(self) -> Result:
        """Time since the warm-up, and what the rounds did: `training.result.summarise`."""
        return summarise(self.events, self.config.strategy.warmup, self.last_update)

    def curve(self, event: str, key: str, against: str = "update") -> list[tuple[float, float]]:
        """(update or seconds of training, value) of all events of a kind, NaN where missing."""
        points = [(float(one["update"]), one.get(key, math.nan)) for one in self.named(event)]
        if against == "update":
            return points
        marks = [(0.0, 0.0)]  # an update, and the seconds up to it, without evaluation
        for found in self.named("update"):
            marks.append((found["update"], marks[-1][1] + training_seconds(found["seconds"])))
        return [(max(s for mark, s in marks if mark <= update), value) for update, value in points]

    def phases(self) -> dict[str, float]:
        """Milliseconds per update of each phase, over the whole run."""
        totals: Counter[str] = Counter()
        for event in self.named("update"):
            totals.update(event["seconds"])
        return {name: 1000 * total / max(self.last_update, 1) for name, total in totals.items()}


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ in nothing but the seed, under one name."""

    name: str
    runs: tuple[RunHistory, ...]

    @property
    def config(self) -> TrainConfig:
        return self.runs[0].config

    @property
    def seeds(self) -> list[int]:
        return sorted(run.config.seed for run in self.runs)


def read_runs(paths: Sequence[Path | str]) -> list[RunHistory]:
    """The runs in the given folders; a folder that only holds run folders stands for these."""
    found: list[RunHistory] = []
    for path in map(Path, paths):
        inner = sorted(file.parent for file in path.glob("*/config.toml"))
        folders = inner if inner and not (path / "config.toml").exists() else [path]
        found += [RunHistory(Run.open(folder)) for folder in folders]
    if not found:
        raise DertsError("no run is named: give a run folder, or several (--help)")
    begun = [history for history in found if history.named("update")]
    for history in found:
        nothing = f"{history.run.path} has logged nothing yet"
        if not begun:
            raise DertsError(f"{nothing}: wait, or train it first")
        if history not in begun:
            say(f"{nothing}: it is left out")
    return begun


def group_runs(histories: Sequence[RunHistory]) -> list[RunGroup]:
    """Groups in the order given, random first; named after what tells them apart."""
    alike: dict[TrainConfig, list[RunHistory]] = {}
    for history in histories:
        alike.setdefault(replace(history.config, seed=0), []).append(history)
    different = [name for name in differing_settings(list(alike)) if name != "strategy.name"]
    telling = [name for name in different if not name.startswith("hardware.")]
    names = [_group_name(config, telling) for config in alike]
    if len(set(names)) < len(names):  # nothing but the hardware tells some of them apart
        names = [_group_name(config, different) for config in alike]
    groups = [RunGroup(name, tuple(runs)) for name, runs in zip(names, alike.values(), strict=True)]
    return sorted(groups, key=lambda group: group.config.strategy.name != "random")


def _group_name(config: TrainConfig, settings: Sequence[str]) -> str:
    values, parts = flat(as_values(config)), [str(config.strategy.name)]
    last = [name.split(".")[-1] for name in settings]
    for name, short in zip(settings, last, strict=True):
        parts.append(f"{short if last.count(short) == 1 else name}={values.get(name)}")
    return " ".join(parts)


def differing_settings(configs: Sequence[TrainConfig]) -> list[str]:
    """Names of the settings that are not alike in all configs."""
    all_values = [flat(as_values(config)) for config in configs]
    names = dict.fromkeys(name for values in all_values for name in values)
    return [name for name in names if len({repr(v.get(name)) for v in all_values}) > 1]


def settings_table(groups: Sequence[RunGroup]) -> list[tuple[str, ...]]:
    """What tells groups apart, a heading first; nothing where nothing does."""
    values = [flat(as_values(group.config)) for group in groups]
    names = differing_settings([group.config for group in groups])
    rows = [(name, *(str(value.get(name, "")) for value in values)) for name in names]
    return [("setting", *(group.name for group in groups)), *rows] if rows else []


def flat(values: Mapping[str, Any], joint: str = ".", path: str = "") -> dict[str, Any]:
    """Tables in tables as one, by their joint names.

    >>> flat({"tasks": {"shot": 5}, "seed": 0})
    {'tasks.shot': 5, 'seed': 0}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        inner = isinstance(value, dict)
        found |= flat(value, joint, f"{path}{name}{joint}") if inner else {path + name: value}
    return found


def finished_results(groups: Sequence[RunGroup]) -> dict[str, list[Result]]:
    """What the finished runs of each group have reached, by the group's name."""
    results: dict[str, list[Result]] = {}
    for group, run in ((one, run) for one in groups for run in one.runs):
        if run.result is not None:
            found = {**run.summary, "seed": run.config.seed, "accuracy": run.result["accuracy"]}
            if group.config.tasks.noise == "none":
                # where we added no noise, nobody knows which labels are wrong
                found["noise"] = dict.fromkeys(found["noise"])
            results.setdefault(group.name, []).append(found)
    return results


def comparison_table(results: Mapping[str, Sequence[Result]]) -> Sequence[tuple[str, ...]]:
    """Results by variant side by side, as text, the first row a heading.

    Differences are paired by seed, against the first variant. Wrong labels only where known.
    """
    by_seed = {name: {one["seed"]: one["accuracy"] for one in results[name]} for name in results}
    first, theirs = next(iter(by_seed.items()))
    rows = [("strategy", "accuracy", f"against {first}", KEPT_COLUMN, "ms/update", "selection")]
    for name, ours in by_seed.items():
        gain = paired_by_seed(ours, theirs)
        seeds = " against ".join(", ".join(map(str, sorted(one))) for one in (ours, theirs))
        difference = gain.shown("+") if gain else f"no seed in common: {seeds}"
        kept = [known for one in results[name] if (known := one["noise"]["kept"]) is not None]
        seconds = fmean(one["seconds_per_update"] or 0.0 for one in results[name])
        share = fmean(one["selection_share"] or 0.0 for one in results[name])
        wrong = f"{100 * fmean(kept):.1f}%" if kept else ""
        numbers = wrong, f"{1000 * seconds:.0f}", f"{100 * share:.1f}%"
        reached = str(over_seeds(list(ours.values())))
        rows.append((name, reached, "" if name == first else difference, *numbers))
    if any(row[3] for row in rows[1:]):
        return rows
    return [(*row[:3], *row[4:]) for row in rows]


def what_it_did(config: TrainConfig, rounds: int, parts: Mapping[str, Mapping[str, float]]) -> str:
    """A few plain sentences about runs: of how many rounds, and `parts_of_rounds`."""
    if config.strategy.name == "random":
        return "Every task was drawn at random."
    if (warmup := config.resolved().strategy.warmup) >= config.updates:
        return f"It never began: the warm-up of {warmup} updates is all of the run."
    if not parts:
        return ""
    pools = f"{rounds} pool{'' if rounds == 1 else 's'}"
    told = [f"It drew {pools} of {config.strategy.pool} tasks."]
    if (share := parts.get("votes", {}).get("relabelled")) is not None:
        did = f"relabelled {100 * share:.1f}% of the labels" if share else "changed no label"
        told.append(f"The majority vote {did}.")
    if (share := parts.get("drop", {}).get("dropped")) is not None:
        some = f"{100 * share:.1f}% of the tasks looked noisy and were dropped."
        told.append(some if share else "No task was dropped.")
    chosen = {"Classes were balanced": parts.get("balance", {}).get("rounds", 0.0)}
    for name, share in parts.get("select", {}).items():
        chosen[CHOSEN.get(name, f"Tasks were selected by {name}")] = share
    for sentence, share in chosen.items():
        if sentence and share:
            often = f"In {100 * share:.0f}% of the rounds {sentence[0].lower()}{sentence[1:]}"
            told.append(f"{sentence if share == 1 else often}.")
    return " ".join(told)
