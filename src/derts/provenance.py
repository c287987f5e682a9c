"""Which code on which machine made a result."""

import hashlib
import os
import platform
import subprocess
from functools import cache
from pathlib import Path

import torch

from derts import __version__

CODE = (".py", ".toml", ".json")


@cache
def code_version() -> dict[str, str | bool]:
    """Version, a digest of the package's source and recipes, and the commit it is of.

    `dirty` says whether the source differs from that commit; without git there is a `note`.
    """
    home = Path(__file__)
    digest = hashlib.sha256()
    for file in sorted(file for file in home.parent.rglob("*") if file.suffix in CODE):
        digest.update(file.read_bytes())
    version: dict[str, str | bool] = {"version": __version__, "source": digest.hexdigest()[:16]}
    # a package that is installed inside of another project's checkout is not of its commit
    tracked = _git(home.parent, "ls-files", "--error-unmatch", home.name)
    commit = _git(home.parent, "rev-parse", "HEAD")
    if tracked is None or commit is None:
        return version | {"note": "no git checkout: only the digest says which source this is"}
    changes = _git(home.parent, "status", "--porcelain", "--", ".")
    return version | {"commit": commit, "dirty": changes != ""}


def _git(folder: Path, *words: str) -> str | None:
    """What git answers, or None where it cannot."""
    command = ["git", "-C", str(folder), *words]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def machine(device: str = "cpu") -> dict[str, str | int]:
    """The machine in words: processor, cores, accelerator, versions."""
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
