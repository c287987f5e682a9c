"""What the method did in some runs: votes, drop, balance, select; in plain words."""

from collections.abc import Iterator, Sequence

from derts.report.read import RunGroup
from derts.training.result import parts as parts_of_rounds

CHOSEN = {
    "facility-location": "Tasks were selected by facility location",
    "random": "Tasks were drawn at random, because selecting does not pay here",
    "uniform": "Tasks were drawn at random from the pool",
    "balanced": "",  # told by the part balance
}
CHANGED = "The data was prepared anew since: it is not what the run was trained on."


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
    pools = f"{len(rounds)} pool{'' if len(rounds) == 1 else 's'}"
    return [f"It looked at {pools} of {strategy.pool} tasks.", *_acted(parts)]


def _acted(parts: dict[str, dict[str, float]]) -> Iterator[str]:
    relabelled = parts.get("votes", {}).get("relabelled")
    dropped = parts.get("drop", {}).get("dropped")
    balanced = parts.get("balance", {}).get("rounds", 0.0)
    if relabelled is not None:
        share = f"relabelled {100 * relabelled:.1f}% of the labels"
        yield f"The majority vote {share if relabelled else 'changed no label'}."
    if dropped is not None:
        share = f"{100 * dropped:.1f}% of the tasks looked noisy and were dropped."
        yield share if dropped else "No task was dropped."
    if balanced:
        yield f"Classes were balanced{_when(balanced)}."
    for name, rounds in parts.get("select", {}).items():
        sentence = CHOSEN.get(name, f"Tasks were selected by {name}")
        if sentence:
            yield f"{sentence}{_when(rounds)}."


def _when(share: float) -> str:
    return "" if share == 1 else f" in {100 * share:.0f}% of the rounds"


def notes_of(groups: Sequence[RunGroup]) -> list[str]:
    """The different notes of all runs, each with its group's name where there are several."""
    found = [
        note if len(groups) == 1 else f"{group.name}: {note}"
        for group in groups
        for run in group.runs
        for note in (*run.summary["notes"], *([CHANGED] if run.run.data_changed() else []))
    ]
    return list(dict.fromkeys(found))
