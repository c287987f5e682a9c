"""Which code on which machine made a result."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from functools import cache
from pathlib import Path

from derts import __version__

CODE = (".py", ".toml", ".json")


@cache
def code_version() -> dict[str, str]:
    """Version, a digest of the package's source and recipes, and the commit where git knows one."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for file in sorted(file for file in root.rglob("*") if file.suffix in CODE):
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
