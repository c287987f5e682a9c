"""A run folder: config.toml, data.json, events.jsonl, rounds/, checkpoints/, result.json."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from safetensors.torch import save

from derts.config import TrainConfig
from derts.config_file import read_config, to_toml
from derts.data import data_fingerprint
from derts.errors import DertsError, say
from derts.files import LOCK, parse_json, regular, write_atomically, write_json
from derts.learners import AnyLearner, pretrained_weights
from derts.selection.round_record import RoundRecord

KEEP_ROUNDS = 3
BACKBONE = "backbone.safetensors"
CHANGED = "The data was prepared anew since: it is not what the run was trained on."
Event = dict[str, Any]
Listen = Callable[[Event], None]
NOISE = {"pool", "dropped", "kept"}
READ = {"validation": ("accuracy",), "round": ("round", "pool", "looks_noisy")}
"""The numbers that are read from kinds of events."""
TABLES = {"update": "seconds", "round": "noise"}
"""Their tables of numbers."""


class Run:
    """One run's folder, to be begun by `clear`; `Run.open` reads an existing one."""

    def __init__(self, path: Path, config: TrainConfig) -> None:
        self.path, self.config = path, config

    def clear(self, learner: AnyLearner | None = None) -> None:
        """Remove all that is in the folder, save the config in it, and what no package has of a
        pretrained backbone: the run begins.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        # the config last: until then the folder is known as a run, should we be killed
        for old in sorted(self.path.iterdir(), key=lambda file: file.name == "config.toml"):
            if old.is_dir() and not old.is_symlink():
                shutil.rmtree(old)
            elif old.name != LOCK:
                old.unlink()
        write_atomically(self.path / "config.toml", to_toml(self.config).encode())
        if (fingerprint := data_fingerprint(self.config.data)) is not None:
            beside = os.path.relpath(Path(self.config.data).resolve(), self.path.resolve())
            write_json(self.path / "data.json", {"fingerprint": fingerprint, "from_here": beside})
        (self.path / "checkpoints").mkdir()
        if learner is not None and self.config.model.weights:
            write_atomically(self.path / BACKBONE, save(pretrained_weights(learner)))

    def data_changed(self) -> bool:
        """Whether another store is now where the one that the run was trained on was."""
        return self.found_data() is None and data_fingerprint(self.config.data) is not None

    def found_data(self) -> str | None:
        """Where the run's data is: as its config names it, as it lay to the run, or near the run.

        A store is known by its fingerprint. Built-in data is as the config names it.
        """
        here, named = self.path.resolve(), self.config.data
        if (known := self._data_record()) is None:
            return named
        likely: list[Path | str] = [named, here / known[1]]
        likely += [one / Path(named).name for one in here.parents[:4]]
        likely += [file.parent for one in here.parents[:2] for file in one.glob("*/store.json")]
        return next((str(one) for one in likely if _is_store(one, known[0])), None)

    def _data_record(self) -> tuple[object, str] | None:
        """Fingerprint of the data, and where it lay to the run."""
        path = self.path / "data.json"
        try:
            about = parse_json(regular(path).read_text(encoding="utf-8"))
            return about["fingerprint"], str(about.get("from_here", ""))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DertsError(f"{path} is damaged ({error}): remove it") from None

    def data(self, other: str | None = None, changed: bool = False, *, own: bool = False) -> str:
        """The data to open: `other`, or the run's own if it is as it was or may have `changed`.

        `own`: `other` must be a copy of the run's own as well.
        """
        if other:
            known = self._data_record()
            if known and own and not changed and not _is_store(other, known[0]):
                wrong = f"{other} is not what {self.path} was trained on"
                raise DertsError(f"{wrong}: name another, or go on knowingly with --data-changed")
            return other
        found, named = self.found_data(), self.config.data
        another = found != named and data_fingerprint(named) is not None
        if found is not None:
            if another:
                say(f"the data of {self.path} is taken from {found}, which has its fingerprint")
            return found
        cause = f"{named}, which {self.path} was trained on,"
        if not another:
            raise DertsError(f"{cause} is not there any more: say with --data where it is now")
        if not changed:
            fix = "name the old store with --data, or go on knowingly with --data-changed"
            raise DertsError(f"{cause} was prepared again since: train again, {fix}")
        return named

    @staticmethod
    def check_free(path: Path, overwrite: bool = False) -> None:
        """Refuse a folder with anything in it but leftovers and, with `overwrite`, an older run."""
        found = {*path.glob("*")} if path.is_dir() else {path} if path.exists() else set()
        is_run = (path / "config.toml").exists()
        if found - {path / LOCK, *path.glob(".*.tmp")} and not (overwrite and is_run):
            fix = "choose another --out" + (" or pass --overwrite" if is_run else "")
            raise DertsError(f"{path} already exists: {fix}")

    @staticmethod
    def open(path: Path | str) -> Run:
        """An existing run, or a DertsError that says what is not there."""
        path = Path(path)
        if not (path / "config.toml").is_file():
            fix = "give a folder that derts train wrote"
            raise DertsError(f"{path} is not a run folder (no config.toml): {fix}")
        config = read_config(path / "config.toml")
        if (path / BACKBONE).is_file():  # the file that it was may be gone
            config = replace(config, model=replace(config.model, weights=str(path / BACKBONE)))
        return Run(path, config)

    def extend(self, before: int) -> None:
        """Save the config with its new number of updates; the result of the old stays beside."""
        write_atomically(self.path / "config.toml", to_toml(self.config).encode())
        if (self.path / "result.json").exists():
            (self.path / "result.json").replace(point_file(self.path, before))

    def log(self, event: Event) -> None:
        """Append one line to events.jsonl."""
        with (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    def events(self) -> Iterator[Event]:
        """All events so far; a line cut off by a crash ends the listing."""
        log = self.path / "events.jsonl"
        for number, line in enumerate(log.read_bytes().splitlines() if log.is_file() else (), 1):
            try:
                event = parse_json(line)
            except ValueError:  # no JSON, or not even text
                return
            if not is_event(event):
                raise DertsError(f"line {number} of {log} is no event of a run: remove it")
            yield event

    def log_lengths(self) -> dict[str, int]:
        """How long events.jsonl is, in bytes that are safely on the disk."""
        with (self.path / "events.jsonl").open("ab") as file:
            os.fsync(file.fileno())
            return {"events.jsonl": file.tell()}

    def rewind(self, state: Mapping[str, Any]) -> None:
        """Cut events.jsonl to its length in a checkpoint ({}: to nothing), and clear leftovers."""
        log, logs = self.path / "events.jsonl", state.get("logs")
        length = logs.get("events.jsonl") if isinstance(logs, Mapping) else None if state else 0
        if not isinstance(length, int) or length < 0:
            cause = f"the newest checkpoint of {self.path} does not say how long its logs are"
            raise DertsError(f"{cause}: remove it to go on from the one before")
        if regular(log).exists() and length < log.stat().st_size:
            os.truncate(log, length)
        for leftover in (*self.path.glob(".*.tmp"), *self.path.glob("*/.*.tmp")):
            leftover.unlink(missing_ok=True)

    def keep_round(self, record: RoundRecord) -> None:
        """Keep what a round decided task by task, for the report; only of the newest rounds."""
        folder = self.path / "rounds"
        folder.mkdir(exist_ok=True)
        write_atomically(folder / f"round-{record.number:06d}.safetensors", record.to_bytes())
        for old in self.round_files()[:-KEEP_ROUNDS]:
            old.unlink(missing_ok=True)

    def round_files(self) -> list[Path]:
        """The records of rounds that are kept, oldest first."""
        return sorted((self.path / "rounds").glob("round-*.safetensors"))

    def result(self, update: int | None = None) -> Event | None:
        """What result.json holds, or what was measured at an update; None where it is not there."""
        path = self.path / "result.json" if update is None else point_file(self.path, update)
        try:
            found = parse_json(regular(path).read_text(encoding="utf-8"))
            if not _is_result(found):
                raise ValueError("it holds no result")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise DertsError(f"{path} is damaged ({error}): remove it and resume") from None
        return found


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
    names = READ.get(kind, ())
    table = event.get(TABLES[kind]) if kind in TABLES else {}
    if not isinstance(table, dict) or not isinstance(event.get("parts", {}), dict):
        return False
    told = [name for name in ("update", "loss", "accuracy") if name in event]
    values = [*(event.get(name) for name in (*names, *told)), *table.values()]
    if kind == "round":
        values = [value for value in values if value is not None]
        whole = table.keys() >= NOISE and all(name in event for name in names)
        return whole and all(map(is_number, values)) and (event["pool"] or 0) > 0
    return all(map(is_number, values))


def _is_store(path: Path | str, fingerprint: object) -> bool:
    """Whether a store with this fingerprint is at a path."""
    try:
        return data_fingerprint(path) == fingerprint
    except (DertsError, OSError, ValueError):  # damaged, or no path at all
        return False


def _is_result(found: object) -> TypeGuard[Event]:
    return (
        isinstance(found, dict)
        and all(is_number(found.get(name)) for name in ("accuracy", "interval", "updates"))
        and isinstance(found.get("split"), str)
        and all(isinstance(found.get(name, {}), dict) for name in ("seconds", "code", "machine"))
        and isinstance(found.get("accuracies", []), list)
        and all(map(is_number, found.get("accuracies", [])))
    )


def point_file(folder: Path, update: int) -> Path:
    """Where a run keeps what was measured at an update before its end."""
    return folder / f"result-{update:07d}.json"
