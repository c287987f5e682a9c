"""Training from images that do not fit on the device, against the same images that do.

    python benchmarks/streaming.py results/streaming-h200.json --limit-gib 1 --updates 300

Makes images of random pixels of twice the limit, trains a ProtoNet on them twice, and writes the
rates. On a CPU nothing is gained by streaming; the figures that count are a GPU's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from timing import write_with_code

from derts.config import HardwareConfig, ModelConfig, TrainConfig
from derts.data import ImageTable, streaming
from derts.data.streaming import StreamedTable
from derts.training import Trainer

SIDE, CLASSES = 84, 64


def random_images(limit_gib: float) -> ImageTable:
    """A table of twice the limit."""
    each = int(2 * limit_gib * 2**30 / (SIDE * SIDE * 3)) // CLASSES + 1
    pixels = torch.randint(256, (each * CLASSES, SIDE, SIDE, 3), dtype=torch.uint8)
    names = tuple(f"class {number}" for number in range(CLASSES))
    return ImageTable(pixels, torch.arange(CLASSES).repeat_interleave(each), names)


def rate(config: TrainConfig, images: ImageTable) -> tuple[float, bool]:
    """Images per second after a warm-up, and whether they were streamed."""
    events: list[dict[str, Any]] = []
    trainer = Trainer(config, {"train": images}, events.append)
    trainer.train()
    warm = [event["update"] for event in events if event["update"] <= config.updates // 3]
    counted = events[len(warm) :]
    seconds = sum(sum(event["seconds"].values()) for event in counted)
    tasks = config.tasks
    per_update = config.meta_batch * tasks.way * (tasks.shot + tasks.query)
    done = config.updates - max(warm, default=0)
    return done * per_update / seconds, isinstance(trainer.images, StreamedTable)


def main(
    out: tyro.conf.Positional[Path],
    limit_gib: float = 1.0,
    updates: int = 300,
    meta_batch: int = 32,
    width: int = 64,
    precision: Literal["float32", "bfloat16"] = "bfloat16",
    device: str = "auto",
) -> None:
    """Train on images that take twice the limit; the first third of the updates is not counted."""
    images = random_images(limit_gib)
    config = TrainConfig(
        model=ModelConfig(width=width),
        hardware=HardwareConfig(device=device, precision=precision),
        updates=updates,
        meta_batch=meta_batch,
    )
    in_memory, held = rate(config, images)
    streaming.image_memory = lambda device: limit_gib * 2**30
    streamed, was_streamed = rate(config, images)
    assert was_streamed
    assert not held
    found = {
        "images": len(images),
        "gib": round(images.images.nbytes / 2**30, 3),
        "limit_gib": limit_gib,
        "in_memory_images_per_second": round(in_memory, 1),
        "streamed_images_per_second": round(streamed, 1),
        "ratio": round(streamed / in_memory, 4),
    }
    print(found)
    write_with_code(out, "cuda" if torch.cuda.is_available() else "cpu", **found)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
