"""Checkpoints: written whole or not at all, read without running code from them."""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from derts.errors import DertsError, say
from derts.files import regular, write_atomically

Weights = dict[str, torch.Tensor]
State = dict[str, Any]
KEEP = 2
MAGIC = b"derts-checkpoint-1 "


def save_checkpoint(folder: Path, update: int, state: State) -> Path:
    """Write folder/update-NNNNNNN.ckpt, a checksum and what torch.save gives; keep two."""
    path = folder / f"update-{update:07d}.ckpt"
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    checksum = hashlib.sha256(content).hexdigest().encode()
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, MAGIC + checksum + b"\n" + content)
    for old in checkpoint_files(folder)[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def checkpoint_files(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(folder.glob("update-*.ckpt"))


def newest_checkpoint(folder: Path, quiet: bool = False) -> tuple[Path, State] | None:
    """The newest checkpoint that is whole, with its state; None where there is none at all.

    A line tells of damaged ones passed over; where all are damaged, that is an error.
    """
    damaged: list[str] = []
    for path in reversed(checkpoint_files(folder)):
        try:
            state = load_checkpoint(path)
        except DertsError as error:
            damaged.append(str(error).rpartition(": ")[0])
            continue
        for cause in damaged if not quiet else ():
            say(f"{cause}: going on from the one before it, {path.name}")
        return path, state
    if damaged:
        raise DertsError(f"{damaged[0]}, and there is none before it that is whole: train again")
    return None


def load_checkpoint(path: Path) -> State:
    """The state in a checkpoint, its checksum verified; tensors and plain values only."""
    try:
        header, _, content = regular(path).read_bytes().partition(b"\n")
        if not header.startswith(MAGIC):
            raise ValueError("it does not begin like a checkpoint")
        if hashlib.sha256(content).hexdigest().encode() != header.removeprefix(MAGIC):
            raise ValueError("its checksum is wrong")
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or "learner" not in state:
            raise ValueError("it holds no learner")
        if not (isinstance(state["learner"], dict) and isinstance(best_weights(state), dict)):
            raise ValueError("its weights are no table of tensors")
        for part in ("learner", "optimiser", "best"):
            check_finite(state.get(part), part)
    except FileNotFoundError:
        raise DertsError(f"no checkpoint at {path}: check the path") from None
    except Exception as error:  # what torch raises on a damaged file can be anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        cause = f"checkpoint {path} is damaged or not one of ours ({reason})"
        raise DertsError(f"{cause}: use the one before it, or train again") from None
    return state


def check_finite(values: object, name: str) -> None:
    """A ValueError that names the first tensor in nested tables with a number that is not finite.

    >>> check_finite({"weight": torch.tensor([1.0, float("nan")])}, "learner")
    Traceback (most recent call last):
    ValueError: learner.weight holds numbers that are not finite
    """
    if isinstance(values, torch.Tensor) and not bool(values.isfinite().all()):
        raise ValueError(f"{name} holds numbers that are not finite")
    for key, value in values.items() if isinstance(values, dict) else ():
        check_finite(value, f"{name}.{key}")


def weights_of(learner: torch.nn.Module) -> Weights:
    """A learner's state in memory of its own."""
    return {name: value.detach().clone() for name, value in learner.state_dict().items()}


def best_weights(state: Mapping[str, Any]) -> Weights:
    """Of a checkpoint's state, the best weights if these count, or the last ones."""
    best = state.get("best")
    weights: Weights = best["weights"] if best and best["counts"] else state["learner"]
    return weights


def load_warmup(folder: Path) -> State | None:
    """The state, with `events`, that a run left in a folder at the end of its warm-up, if whole."""
    try:
        found = newest_checkpoint(folder, quiet=True)
    except DertsError as error:
        say(f"{str(error).rpartition(',')[0]}: the warm-up is done again")
        return None
    return found[1] if found is not None and "events" in found[1] else None
