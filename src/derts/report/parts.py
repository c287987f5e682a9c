"""Which parts of the method acted in some runs: votes, drop, balance, select; in plain words."""

from __future__ import annotations

from collections.abc import Sequence

from derts.report.read import RunGroup
from derts.training.result import parts as parts_of_rounds

Shares = dict[str, dict[str, float]]
CHOSEN = {  # how tasks were chosen: for a cell, and for a sentence
    "facility-location": ("facility location", "Tasks were selected by facility location"),
    "random": (
        "random: selecting does not pay here",
        "Tasks were drawn at random, because selecting does not pay here",
    ),
    "uniform": ("random tasks of the pool", "Tasks were drawn at random from the pool"),
    "balanced": ("", ""),  # told by the part balance
}


def parts_told(group: RunGroup) -> Shares:
    """What the rounds of a group's runs tell of each part; empty where there was no round."""
    return parts_of_rounds([event for run in group.runs for event in run.named("round")])


def parts_cell(parts: Shares) -> str:
    """The parts that acted, for a cell of a table.

    >>> parts_cell({"votes": {"rounds": 1.0, "relabelled": 0.24}, "drop": {"rounds": 0.0,
    ...     "dropped": 0.0}, "balance": {"rounds": 0.0}, "select": {"facility-location": 1.0}})
    'votes 24.0%, facility location'
    """
    cells = [
        f"{name} {100 * parts[name].get(key, 0.0):.1f}%"
        for name, key in (("votes", "relabelled"), ("drop", "dropped"))
        if parts.get(name, {}).get("rounds")
    ]
    cells += ["balance"] if parts.get("balance", {}).get("rounds") else []
    cells += [CHOSEN.get(name, (name,))[0] for name in parts.get("select", {})]
    return ", ".join(filter(None, cells))


def what_it_did(group: RunGroup) -> list[str]:
    """A few plain sentences about a group."""
    strategy, updates = group.config.strategy, group.config.updates
    if strategy.name == "random":
        return ["Every task was drawn at random."]
    if strategy.warmup >= updates:
        return [f"It never began: the warm-up of {strategy.warmup} updates is all of the run."]
    rounds = [event for run in group.runs for event in run.named("round")]
    parts = parts_of_rounds(rounds)
    if not parts:
        return []
    return [
        f"It looked at {_counted(len(rounds), 'pool')} of {strategy.pool} tasks.",
        *_acted(parts),
    ]


def _acted(parts: Shares) -> list[str]:
    relabelled = parts.get("votes", {}).get("relabelled")
    dropped = parts.get("drop", {}).get("dropped")
    balanced = parts.get("balance", {}).get("rounds", 0.0)
    told = []
    if relabelled is not None:
        share = f"relabelled {100 * relabelled:.1f}% of the labels"
        told.append(f"The majority vote {share if relabelled else 'changed no label'}.")
    if dropped is not None:
        share = f"{100 * dropped:.1f}% of the tasks looked noisy and were dropped."
        told.append(share if dropped else "No task was dropped.")
    if balanced:
        told.append(f"Classes were balanced{_when(balanced)}.")
    for name, share_of_rounds in parts.get("select", {}).items():
        sentence = CHOSEN.get(name, ("", f"Tasks were selected by {name}"))[1]
        told += [f"{sentence}{_when(share_of_rounds)}."] if sentence else []
    return told


def notes_of(groups: Sequence[RunGroup]) -> list[str]:
    """The different notes of all runs, each with its group's name where there are several."""
    found = [
        note if len(groups) == 1 else f"{group.name}: {note}"
        for group in groups
        for run in group.runs
        for note in run.summary["notes"]
    ]
    return list(dict.fromkeys(found))


def _when(share: float) -> str:
    return "" if share == 1 else f" in {100 * share:.0f}% of the rounds"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
