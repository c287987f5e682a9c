"""The machine: which device, how tensors get there, how many threads, how exact products are."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from derts.errors import DertsError

if TYPE_CHECKING:
    import torch

# mallopt's names for what it sets (malloc.h), and when the end of the heap is given back
TRIM_THRESHOLD, MMAP_MAX, NEVER = -1, -4, -1
SPINS = "1000"  # what it takes by itself where it knows of too many threads
CONTAINERS = (  # of either version: the limit, what is used, and how much of that can be given up
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


@cache
def keep_freed_memory() -> bool:
    """Ask glibc to keep freed memory, for the whole process; False where there is no glibc to ask.

    By default the next update fetches large pieces again, page by page: on a CPU up to half of its
    time. The command line asks; a program of your own may.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(MMAP_MAX, 0) == 1 and mallopt(TRIM_THRESHOLD, NEVER) == 1)


def wait_without_spinning() -> None:
    """Let torch's threads sleep soon when they wait for each other; call before importing torch.

    GNU's OpenMP spins for milliseconds. Where another program has one of the cores, each spins for
    one that cannot run. What the user has set stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def choose_device(name: str = "auto", option: str = "--hardware.device") -> torch.device:
    """The device that an option names; `auto` takes a GPU where there is one."""
    import torch  # here, because the command line needs this file for --help as well

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        cause = f"cannot be used here ({str(error).splitlines()[0]})"
        raise DertsError(f"{option} {name} {cause}: try auto or cpu") from None
    return device


def free_memory(device: torch.device) -> int | None:
    """Bytes of memory that are free on a device, for this process; None where nobody says."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        free = 1024 * int(text.split("MemAvailable:")[1].split()[0])
    except (OSError, IndexError, ValueError):
        if not hasattr(os, "sysconf"):
            return None
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for names in CONTAINERS:  # one is killed at its own limit
        with suppress(OSError, ValueError, IndexError):
            most, now, what = ((Path("/sys/fs/cgroup") / name).read_text() for name in names)
            cached = int(what.split("inactive_file ")[-1].split()[0])
            free = min(free, int(most) - int(now) + cached)
    return max(free, 0)


def peak_memory(device: torch.device) -> int | None:
    """Bytes of a device's memory that this process has held at most; None where nobody says."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_reserved(device)
    with suppress(OSError, IndexError, ValueError):  # elsewhere than on Linux
        told = Path("/proc/self/status").read_text(encoding="ascii")
        return 1024 * int(told.split("VmHWM:")[1].split()[0])
    return None


def limit_memory(device: torch.device, gib: float | None) -> None:
    """Let this process hold no more of a GPU: torch gives back what it keeps before it takes more.

    It holds for the whole process. On a CPU, and for None, nothing changes.
    """
    if device.type == "cuda" and gib is not None:
        import torch

        index = torch.cuda.current_device() if device.index is None else device.index
        total = torch.cuda.get_device_properties(index).total_memory
        torch.cuda.set_per_process_memory_fraction(min(gib * 2**30 / total, 1.0), index)


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on a device; to a GPU by way of pinned memory, in the background."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@contextmanager
def one_thread() -> Iterator[None]:
    """For work so small that more threads would only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def fast_math(device: torch.device, tune: bool) -> Iterator[None]:
    """On a GPU TF32 and, if asked for, tried-out convolutions; then the settings from before."""
    if device.type != "cuda":
        yield
        return
    import torch

    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32, convolutions.benchmark
    products.allow_tf32 = convolutions.allow_tf32 = True
    convolutions.benchmark = tune
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32, convolutions.benchmark = before
