"""What a result says of its rounds."""

from typing import Any

from derts.training.result import acting, notes, parts_of_rounds, summarise

Event = dict[str, Any]


def a_round(update: int, **more: Any) -> Event:
    return {"event": "round", "update": update, "noise": {"pool": 0.4, "kept": 0.1}, **more}


def test_parts_are_told_by_the_share_of_rounds_in_which_they_acted() -> None:
    rounds = [
        a_round(0, parts={"votes": {"relabelled": 0.4}, "drop": None, "select": "random"}),
        a_round(1, parts={"votes": {"relabelled": 0.0}, "drop": {"dropped": 0.5}}),
    ]
    assert parts_of_rounds(rounds) == {
        "votes": {"rounds": 0.5, "relabelled": 0.2},
        "drop": {"rounds": 0.5, "dropped": 0.5},
        "select": {"random": 0.5},
    }
    assert acting(rounds[0]) == ["votes", "random"]
    assert acting(a_round(2, parts={"balance": True, "select": "balanced"})) == ["balance"]


def test_events_without_parts_are_no_trouble() -> None:
    rounds = [a_round(0), a_round(1, parts="?")]
    assert parts_of_rounds(rounds) == {}
    assert acting(rounds[0]) == acting(rounds[1]) == []
    summary = summarise(rounds, warmup=0, update=5)
    assert (summary["rounds"], summary["notes"], summary["parts"]) == (2, [], {})
    assert summary["noise"] == {"pool": 0.4, "selected": None, "dropped": None, "kept": 0.1}
    assert summarise([], warmup=0, update=0)["seconds_per_update"] is None


def test_each_note_is_told_once() -> None:
    events: list[Event] = [{"event": "note", "text": text} for text in ("a", "b", "a")]
    assert notes([*events, {"event": "note"}, a_round(3)]) == ["a", "b"]
