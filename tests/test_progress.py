"""Progress: plain lines without a terminal, a bar on one, nothing when quiet."""

from __future__ import annotations

import io
import re
import time

import pytest

from derts.progress import progress, silent


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_are_few() -> None:
    stream = io.StringIO()
    with progress("work", total=10_000, unit="steps", stream=stream) as advance:
        for _ in range(10_000):
            advance()
    lines = stream.getvalue().splitlines()
    assert 1 <= len(lines) <= 11
    assert lines[-1].startswith("work: 10,000/10,000 steps, ")
    assert lines[-1].endswith("taken")


def test_bar() -> None:
    stream = Terminal()
    with progress("work [x]", total=4, unit="steps", stream=stream) as advance:
        advance(2, note="[loss] 0.5")
        advance(2)
    assert "work [x]" in stream.getvalue()
    assert "[loss] 0.5" in stream.getvalue()


def test_quiet() -> None:
    stream = Terminal()
    with progress("work", total=4, quiet=True, stream=stream) as advance:
        advance(2)
    with silent("work", total=4) as advance:
        advance(2, note="x")
    assert stream.getvalue() == ""


def test_an_error_passes_through() -> None:
    def fail() -> None:
        with progress("work", total=4, stream=io.StringIO()) as advance:
            advance(1)
            raise KeyError

    with pytest.raises(KeyError):
        fail()


@pytest.mark.parametrize("title", ["training", "demo"])
def test_every_number_is_seen_on_eighty_columns(
    title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    note = "random: " * (title == "demo") + "loss 0.316 accuracy 88.6% selection 12%"
    with progress(title, total=60_000, unit="updates", stream=stream) as advance:
        monkeypatch.setattr("derts.progress._rate", lambda rate: "5.28")
        advance(31_000, note=note)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    last = [line for line in re.split(r"[\r\n]", plain) if line.strip()][-1]
    assert all(part in last for part in (title, "31000/60000", "5.28/s", note))


def test_what_was_done_before_does_not_count_as_speed() -> None:
    stream = io.StringIO()
    with progress("training", total=200, unit="updates", stream=stream) as advance:
        advance(100, before=True)  # a resumed run
        time.sleep(0.1)
        advance(50, note="loss 1")
        time.sleep(0.1)
        advance(50, note="loss 1")
    lines = stream.getvalue().splitlines()
    assert lines[-1].startswith("training: 200/200 updates, ")
    assert not any("100/200" in line for line in lines)
    rates = [float(line.split(", ")[1].split()[0].replace(",", "")) for line in lines]
    assert all(rate < 1000 for rate in rates)
