"""What a run's result says: its accuracy, what made it, and which parts of the method acted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from derts.clock import seconds_per_update, selection_share
from derts.config_file import as_values
from derts.data.store import store_settings
from derts.evaluation import Evaluation
from derts.hardware import peak_memory
from derts.provenance import code_version, machine
from derts.training.run_folder import Event

if TYPE_CHECKING:
    from derts.training.trainer import Trainer

Result = dict[str, Any]


def make_result(trainer: Trainer, evaluation: Evaluation, events: Iterable[Event] = ()) -> Result:
    """A result as it is written to JSON; `events` are all that the run logged."""
    return {
        "config": as_values(trainer.config),
        "code": code_version(),
        "machine": machine(str(trainer.device)),
        "seed": trainer.config.seed,
        "updates": trainer.update,
        "weights_of_update": (trainer.weights.kept or {"update": trainer.update})["update"],
        "tasks_trained": trainer.tasks_trained,
        "item_shape": list(trainer.item_shape),
        "embedded_by": store_settings(trainer.config.data).get("embedded_by"),
        "images": {"count": len(trainer.images), "classes": len(trainer.images.class_names)},
        "peak_gib": round((peak_memory(trainer.device) or 0) / 2**30, 3) or None,
        "seconds": {name: round(value, 4) for name, value in trainer.clock.seconds.items()},
        **summarise(list(events), trainer.config.strategy.warmup, trainer.update),
        **_summary(evaluation),
        "accuracies": list(evaluation.accuracies),
    }


def evaluation_event(name: str, trainer: Trainer, evaluation: Evaluation) -> Event:
    return {"event": name, "update": trainer.update, **_summary(evaluation)}


def _summary(evaluation: Evaluation) -> Result:
    accuracy, interval = round(evaluation.mean, 4), round(evaluation.interval, 4)
    return {"split": evaluation.split, "accuracy": accuracy, "interval": interval}


def summarise(events: Sequence[Event], warmup: int, update: int) -> Result:
    """Time per update and the share of selection since the warm-up; what the rounds did."""
    rounds = [event for event in events if event["event"] == "round"]
    random, updates = updates_at_random(rounds, update)
    noise = [event.get("noise", {}) for event in rounds]
    kinds = ("pool", "selected", "dropped", "kept")
    parts = parts_of_rounds(rounds)
    return {
        "seconds_per_update": seconds_per_update(events, warmup),
        "selection_share": selection_share(events, warmup),
        "rounds": len(rounds),
        "updates_at_random": random,
        **({"random_share": random / updates} if updates else {}),
        "noise": {kind: _mean(values.get(kind) for values in noise) for kind in kinds},
        "effective_tasks": _mean(event.get("effective_tasks") for event in rounds),
        "parts": parts,
        "labels": [event for event in events if event["event"] == "labels"],
        "notes": notes(events),
    }


def updates_at_random(rounds: Sequence[Event], until: int) -> tuple[int, int]:
    """Up to update `until`: updates on random tasks for want of a choice, and all since a first."""
    ends = [*(event["update"] for event in rounds[1:]), until]
    spans = [(end - event["update"], event) for event, end in zip(rounds, ends, strict=False)]
    return sum(span for span, event in spans if "random" in event), sum(span for span, _ in spans)


def parts_of_rounds(rounds: Sequence[Event]) -> dict[str, dict[str, float]]:
    """In which share of the rounds each part of the method acted, with the means of its numbers.

    A part with numbers acted where one is not 0; of one that names how, the share of each name.
    """
    told = [event["parts"] for event in rounds if isinstance(event.get("parts"), dict)]
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(name for one in told for name in one):
        values = [one.get(name) for one in told]
        tables = [value for value in values if isinstance(value, dict)]
        counts = Counter(value for value in values if isinstance(value, str))
        counts = counts or Counter(rounds=sum(map(_acted, values)))
        keys = dict.fromkeys(key for one in tables for key in one)
        means = {key: _mean(one.get(key) for one in tables) for key in keys}
        found[name] = {word: round(count / len(told), 4) for word, count in counts.items()}
        found[name] |= {key: mean for key, mean in means.items() if mean is not None}
    return found


def _acted(value: object) -> bool:
    """Whether what a round told of a part says that it changed anything."""
    if isinstance(value, dict):
        return any(isinstance(one, int | float) and one != 0 for one in value.values())
    return bool(value)


def acting(event: Event) -> list[str]:
    """The parts that acted in a round, by name; a choice by the name of how it was made."""
    told = event.get("parts")
    found = told.items() if isinstance(told, dict) else ()
    names = [value if isinstance(value, str) else name for name, value in found if _acted(value)]
    return [name for name in names if name != "balanced"]  # told as `balance` already


def notes(events: Iterable[Event]) -> list[str]:
    """The different notes of a run: where a part of the method could not work, and why."""
    texts = (event.get("text") for event in events if event["event"] == "note")
    return list(dict.fromkeys(str(text) for text in texts if text))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if isinstance(value, int | float)]
    return round(sum(known) / len(known), 6) if known else None
