"""The machine: which device, how tensors get there, how many threads, how exact products are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from derts.config import HardwareConfig
from derts.errors import DertsError


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


@contextmanager
def fast_math(device: torch.device, tune: bool) -> Iterator[None]:
    """On a GPU float32 products by TF32, and if asked for convolutions by tried-out algorithms.

    torch has these settings for the whole process; they are put back afterwards.
    """
    if device.type != "cuda":
        yield
        return
    settings: tuple[tuple[Any, str, bool], ...] = (
        (torch.backends.cuda.matmul, "allow_tf32", True),
        (torch.backends.cudnn, "allow_tf32", True),
        (torch.backends.cudnn, "benchmark", tune),
    )
    before = [getattr(owner, name) for owner, name, _ in settings]
    for owner, name, value in settings:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(settings, before, strict=True):
            setattr(owner, name, value)
