"""The machine: which device, how tensors get there, how many threads, what happens to memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from derts.config import HardwareConfig
from derts.errors import DertsError

# mallopt's names for what it sets (malloc.h)
TRIM_THRESHOLD, MMAP_MAX = -1, -4
MOST = 2**31 - 1  # bytes that stay free at the end of the heap


def choose_device(hardware: HardwareConfig, option: str = "--hardware.device") -> torch.device:
    """The device a config names, by an option; `auto` takes a GPU where there is one."""
    if hardware.threads:
        torch.set_num_threads(hardware.threads)
    if hardware.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(hardware.device)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise DertsError(
            f"{option} {hardware.device} cannot be used here ({reason}): try auto or cpu"
        ) from None
    return device


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on a device; from main memory to a GPU by way of pinned memory, in the background.

    >>> send(torch.ones(2), torch.device("cpu"))
    tensor([1., 1.])
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@contextmanager
def one_thread() -> Iterator[None]:
    """For work so small that more threads would only wait for each other.

    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def keep_freed_memory() -> bool:
    """Ask glibc for it, for the whole process; False where there is no glibc to ask."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(MMAP_MAX, 0) == 1 and mallopt(TRIM_THRESHOLD, MOST) == 1)
