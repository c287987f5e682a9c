"""Checkpoints: written whole or not at all, read without running code from them."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from derts.errors import DertsError
from derts.runs import write_atomically

KEEP = 2


def save_checkpoint(folder: Path, update: int, state: dict[str, Any]) -> Path:
    """Write folder/update-NNNNNNN.pt and remove all but the newest two."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"update-{update:07d}.pt"
    write_atomically(path, buffer.getvalue())
    for old in sorted(folder.glob("update-*.pt"))[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The state in a checkpoint; its records' checksums are verified first."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"wrong checksum in {damaged}")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise DertsError(f"no checkpoint at {path}: check the path") from None
    except (
        zipfile.BadZipFile, pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError
    ) as error:  # fmt: skip
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DertsError(
            f"checkpoint {path} is damaged or not one of ours ({reason}): "
            "use the one before it, or train again"
        ) from None
    if not isinstance(state, dict) or "learner" not in state:
        raise DertsError(f"{path} holds no derts checkpoint: give a file that derts train wrote")
    return state
