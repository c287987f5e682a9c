"""Checkpoints: written whole or not at all, read without running code from them.

Also what is in them apart from a Trainer's state: the best weights, a warm-up that runs share.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from derts.errors import DertsError
from derts.files import write_atomically

Weights = dict[str, Tensor]
State = dict[str, Any]
Events = list[dict[str, Any]]
KEEP = 2
MAGIC = b"derts-checkpoint-1 "


def save_checkpoint(folder: Path, update: int, state: State) -> Path:
    """Write folder/update-NNNNNNN.ckpt and remove all but the newest two.

    The file is one line with a checksum, then what torch.save wrote.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"update-{update:07d}.ckpt"
    checksum = hashlib.sha256(content).hexdigest().encode()
    write_atomically(path, MAGIC + checksum + b"\n" + content)
    for old in checkpoint_files(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def checkpoint_files(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(folder.glob("update-*.ckpt"))


def newest_checkpoint(
    folder: Path, warn: Callable[[str], None] = lambda line: None
) -> tuple[Path, State] | None:
    """The newest checkpoint that is whole, with its state; None where there is none at all.

    `warn` hears of a damaged one that was passed over; where all are damaged, that is an error.
    """
    damaged: list[DertsError] = []
    for path in reversed(checkpoint_files(folder)):
        try:
            state = load_checkpoint(path)
        except DertsError as error:
            damaged.append(error)
            continue
        for passed_over in damaged:
            cause = str(passed_over).rpartition(": ")[0]
            warn(f"{cause}: going on from the one before it, {path.name}")
        return path, state
    if damaged:
        cause = str(damaged[0]).rpartition(": ")[0]
        raise DertsError(f"{cause}, and there is none before it that is whole: train again")
    return None


def say(line: str) -> None:
    """Tell on standard error of something that does not stop us."""
    print(f"derts: {DertsError(line)}", file=sys.stderr)


def load_checkpoint(path: Path) -> State:
    """The state in a checkpoint, its checksum verified; tensors and plain values only."""
    try:
        header, _, content = path.read_bytes().partition(b"\n")
        if not header.startswith(MAGIC):
            raise ValueError("it does not begin like a checkpoint")
        if hashlib.sha256(content).hexdigest().encode() != header.removeprefix(MAGIC):
            raise ValueError("its checksum is wrong")
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or "learner" not in state:
            raise ValueError("it holds no learner")
    except FileNotFoundError:
        raise DertsError(f"no checkpoint at {path}: check the path") from None
    except Exception as error:  # what torch raises on a damaged file can be anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DertsError(
            f"checkpoint {path} is damaged or not one of ours ({reason}): "
            "use the one before it, or train again"
        ) from None
    return state


@dataclass(frozen=True)
class BestWeights:
    """A model's state after an update, and its accuracy on validation classes then."""

    update: int
    accuracy: float
    weights: Weights


def weights_of(learner: nn.Module) -> Weights:
    """A learner's state in memory of its own."""
    return {name: value.detach().clone() for name, value in learner.state_dict().items()}


def judged_weights(state: Mapping[str, Any]) -> Weights:
    """Of a checkpoint's state, the weights that its run is judged by: the best, or the last."""
    best, last = state.get("best"), state["learner"]
    weights: Weights = last if best is None else best["weights"]
    return weights


class SharedWarmup:
    """A Trainer's state and a run's events after its warm-up: in a folder, or in memory.

    >>> shared = SharedWarmup()
    >>> shared.load() is None
    True
    >>> shared.save({"update": 5}, [])
    >>> shared.load()
    ({'update': 5}, [])
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._held: tuple[State, Events] | None = None

    def load(self) -> tuple[State, Events] | None:
        """What was left here, if it is whole."""
        if self.folder is None:
            return copy.deepcopy(self._held)
        try:
            found = newest_checkpoint(self.folder)
        except DertsError as error:
            say(f"{str(error).rpartition(',')[0]}: the warm-up is done again")
            return None
        if found is None:
            return None
        lines = (self.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
        return found[1], [json.loads(line) for line in lines]

    def save(self, state: State, events: Events) -> None:
        """Leave the end of a warm-up for others."""
        if self.folder is None:
            self._held = copy.deepcopy((state, events))
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(event) + "\n" for event in events)
        write_atomically(self.folder / "events.jsonl", lines.encode())
        save_checkpoint(self.folder, state["update"], state)
