"""Put a learner and its images where the arithmetic will run."""

from __future__ import annotations

from typing import Any

import torch

from derts.config import HardwareConfig, TrainConfig
from derts.data.streaming import StreamedTable
from derts.data.table import ImageTable
from derts.kernels.fast_embedding import FastEmbedding
from derts.learners.base import Learner


def place_learner(learner: Learner[Any], config: TrainConfig, device: torch.device) -> None:
    """Move a learner to a device and let it embed images there in the fastest way asked for."""
    hardware = config.hardware
    learner.to(device)
    learner.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    precision = torch.bfloat16 if hardware.precision == "bfloat16" else torch.float32
    embedding = FastEmbedding(learner.backbone, learner.device, precision)
    if hardware.compile and learner.embeds and not embedding.by_kernels:
        embedding.compile_for(config.meta_batch, learner.dtype)
    learner.embedding = embedding


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
