"""Hand-written GPU kernels (Triton). Every one has a plain counterpart that gives the same."""

from __future__ import annotations

import importlib.util
from functools import cache

import torch

__all__ = ["program_count", "usable_on"]


@cache
def _triton_is_there() -> bool:
    return importlib.util.find_spec("triton") is not None


def usable_on(device: torch.device) -> bool:
    """Whether the kernels can run on a device: an NVIDIA GPU, with Triton installed.

    >>> usable_on(torch.device("cpu"))
    False
    """
    return device.type == "cuda" and torch.version.hip is None and _triton_is_there()


def program_count(values: torch.Tensor, steps: int) -> int:
    """Programs of a kernel that share `steps` among them, on the device of `values`."""
    processors = torch.cuda.get_device_properties(values.device).multi_processor_count
    return min(steps, 8 * processors)
