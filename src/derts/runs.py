"""A run folder: config.toml, events.jsonl, rounds/, checkpoints/ and result.json."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from derts import __version__
from derts.config import TrainConfig
from derts.config_file import read_config, to_toml
from derts.errors import DertsError

if TYPE_CHECKING:
    from derts.selection.record import RoundRecord

Event = dict[str, Any]
KEEP_ROUNDS = 3


class Run:
    """One run's folder. `Run.create` starts a new one, `Run.open` reads an existing one."""

    def __init__(self, path: Path, config: TrainConfig) -> None:
        self.path = path
        self.config = config

    @staticmethod
    def create(path: Path | str, config: TrainConfig, *, overwrite: bool = False) -> Run:
        """Make the folder and save the resolved config in it."""
        path = Path(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            if not (overwrite and (path / "config.toml").exists()):
                fix = "choose another --out" + (
                    " or pass --overwrite" if (path / "config.toml").exists() else ""
                )
                raise DertsError(f"{path} already exists: {fix}")
            shutil.rmtree(path)
        (path / "checkpoints").mkdir(parents=True)
        write_atomically(path / "config.toml", to_toml(config).encode())
        return Run(path, config)

    @staticmethod
    def open(path: Path | str) -> Run:
        """An existing run, or a DertsError that says what is not there."""
        path = Path(path)
        if not (path / "config.toml").is_file():
            raise DertsError(
                f"{path} is not a run folder (no config.toml): give a folder that derts train wrote"
            )
        return Run(path, read_config(path / "config.toml"))

    def log(self, event: Event) -> None:
        """Append one line to events.jsonl."""
        with (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    def events(self) -> Iterator[Event]:
        """All events so far; a line cut off by a crash ends the listing."""
        try:
            lines = (self.path / "events.jsonl").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return

    def forget_events_after(self, update: int) -> None:
        """Drop what an interrupted run logged after the checkpoint it goes on from."""
        kept = [event for event in self.events() if event.get("update", 0) <= update]
        lines = "".join(json.dumps(event) + "\n" for event in kept)
        write_atomically(self.path / "events.jsonl", lines.encode())

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

    def result(self) -> Event | None:
        """What result.json holds; None while the run is not finished."""
        path = self.path / "result.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise DertsError(f"{path} is damaged ({error}): remove it and resume") from None
        if not isinstance(found, dict) or "accuracy" not in found:
            raise DertsError(f"{path} holds no result: remove it and resume the run")
        return found

    def write_result(self, result: Event, name: str = "result.json") -> Path:
        """Write a result as JSON, whole or not at all."""
        target = self.path / name
        write_atomically(target, (json.dumps(result, indent=1) + "\n").encode())
        return target


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@cache
def code_version() -> dict[str, str]:
    """Version, a digest of the package's source, and the commit where git knows one."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(file.read_bytes())
    version = {"version": __version__, "source": digest.hexdigest()[:16]}
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
        version["commit"] = answer.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pass
    return version


def machine(device: str = "cpu") -> dict[str, str | int]:
    """The machine in words: processor, cores, accelerator, versions."""
    import torch

    found: dict[str, str | int] = {
        "processor": platform.machine(),
        "cores": os.cpu_count() or 1,
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device,
    }
    if device.startswith("cuda"):
        found["accelerator"] = torch.cuda.get_device_name(device)
    return found
