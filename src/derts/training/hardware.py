"""Put a learner and its images where the arithmetic will run."""

from __future__ import annotations

from typing import Any

import torch

from derts.config import HardwareConfig, TrainConfig
from derts.data.streaming import StreamedTable
from derts.data.table import ImageTable
from derts.hardware import keep_freed_memory
from derts.kernels import usable_on
from derts.learners.base import Learner
from derts.models import CNN4, ResNet12


def place_learner(learner: Learner[Any], config: TrainConfig, device: torch.device) -> None:
    """Move a learner to a device with the precision, memory format and compilation asked for."""
    hardware = config.hardware
    learner.to(device)
    learner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if hardware.precision == "bfloat16":
        learner.precision = torch.bfloat16
    if device.type == "cpu":
        keep_freed_memory()
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
    learner.fused = hardware.precision == "bfloat16" and usable_on(device)
    by_kernels = learner.fused and isinstance(learner.backbone, CNN4 | ResNet12)
    # trying out algorithms pays for batches of one size; pools and candidates come in any
    torch.backends.cudnn.benchmark = not by_kernels
    if hardware.compile and learner.embeds and not by_kernels:
        learner.compile_for(config.meta_batch)


def place_table(
    images: ImageTable, device: torch.device, hardware: HardwareConfig | None = None
) -> ImageTable:
    """Images on a GPU where they fit into the memory for them, else streamed to the device.

    The memory is what the config says, or half of what is free.
    """
    if images.device.type == "cuda":
        return images
    limit = (hardware.image_memory_gib if hardware else 0.0) * 2**30
    if device.type == "cuda":
        limit = limit or torch.cuda.mem_get_info(device)[0] // 2
        if images.images.nbytes < limit:
            return images.to(device)
    elif not limit or images.images.nbytes < limit:
        return images
    return StreamedTable.of(images, device)
