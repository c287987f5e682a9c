"""The list of planted faults fits today's source: make mutants runs them."""

from pathlib import Path

from tests.mutants.run import read_faults, staleness


def test_no_fault_is_stale() -> None:
    faults = read_faults()
    assert len(faults) >= 60
    assert [cause for fault in faults if (cause := staleness(fault))] == []
    assert all(fault["old"] != fault["new"] for fault in faults)


def test_a_stale_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "src" / "derts").mkdir(parents=True)
    (tmp_path / "src" / "derts" / "a.py").write_text("x = 1\nx = 1\n")
    (tmp_path / "test_a.py").touch()
    fault = {
        "about": "twice",
        "file": "a.py",
        "old": "x = 1",
        "new": "x = 2",
        "tests": ["test_a.py"],
    }
    assert "has 2 times" in staleness(fault, tmp_path)
    (tmp_path / "src" / "derts" / "a.py").write_text("x = 1\n")
    assert staleness(fault, tmp_path) == ""
    assert "is gone" in staleness({**fault, "tests": ["b.py"]}, tmp_path)
