"""The lines of events.jsonl: what is read from each kind, and whether a line has it."""

from typing import Any

Event = dict[str, Any]
NOISE = {"pool", "dropped", "kept"}
READ: dict[str, tuple[tuple[str, ...], str | None]] = {
    "validation": (("accuracy",), None),
    "update": ((), "seconds"),
    "round": (("round", "pool", "looks_noisy"), "noise"),
}
"""The numbers that are read from each kind of event, and its table of numbers."""


def is_number(value: object) -> bool:
    """Whether a value from JSON can be counted with."""
    return isinstance(value, int | float) and abs(value) < 1e300  # no NaN either


def is_event(event: object) -> bool:
    """Whether a line of the log has what is read from its kind; skipped updates have no loss."""
    if not isinstance(event, dict):
        return False
    kind = event.get("event")
    if kind == "note":
        return isinstance(event.get("text"), str)
    if not isinstance(kind, str) or not isinstance(event.get("update"), int):
        return False
    names, inner = READ.get(kind, ((), None))
    table = event.get(inner) if inner else {}
    if not isinstance(table, dict) or not isinstance(event.get("parts", {}), dict):
        return False
    told = [name for name in ("update", "loss", "accuracy") if name in event]
    values = [*(event.get(name) for name in (*names, *told)), *table.values()]
    if kind == "round":
        values = [value for value in values if value is not None]
        whole = table.keys() >= NOISE and all(name in event for name in names)
        return whole and all(map(is_number, values)) and event["pool"] > 0
    return all(map(is_number, values))
