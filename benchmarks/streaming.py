"""Training from images that do not fit on the device, against the same images that do.

    python benchmarks/streaming.py results/streaming-h200.json --limit-gib 1 --updates 300

Makes images of random pixels of twice the limit, trains a ProtoNet on them twice, and writes the
rates. On a CPU nothing is gained by streaming; the figures that count are a GPU's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from derts.config import HardwareConfig, ModelConfig, TaskConfig, TrainConfig
from derts.data import ImageTable
from derts.data.streaming import StreamedTable
from derts.files import write_atomically
from derts.provenance import code_version, machine
from derts.training import Trainer

SIDE, CLASSES = 84, 64


@dataclass(frozen=True)
class Options:
    """Options of this benchmark."""

    out: Annotated[Path, tyro.conf.Positional]
    """The JSON file to write."""
    limit_gib: float = 1.0
    """Device memory for images; the images take twice as much."""
    updates: int = 300
    """Per training; the first third is not counted."""
    meta_batch: int = 32
    """Tasks per update."""
    width: int = 64
    """Filters of the CNN4."""
    precision: str = "bfloat16"
    """Arithmetic of the backbone."""
    device: str = "auto"
    """Where to train."""


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


def main(options: Options) -> None:
    images = random_images(options.limit_gib)
    config = TrainConfig(
        tasks=TaskConfig(),
        model=ModelConfig(width=options.width),
        hardware=HardwareConfig(device=options.device, precision=options.precision),  # type: ignore[arg-type]
        updates=options.updates,
        meta_batch=options.meta_batch,
    )
    limit = replace(config.hardware, image_memory_gib=options.limit_gib)
    in_memory, held = rate(config, images)
    streamed, was_streamed = rate(replace(config, hardware=limit), images)
    assert was_streamed
    assert not held
    content = {
        "images": len(images),
        "gib": round(images.images.nbytes / 2**30, 3),
        "limit_gib": options.limit_gib,
        "in_memory_images_per_second": round(in_memory, 1),
        "streamed_images_per_second": round(streamed, 1),
        "ratio": round(streamed / in_memory, 4),
        "code": code_version(),
        "machine": machine("cuda" if torch.cuda.is_available() else "cpu"),
    }
    print(content)
    write_atomically(options.out, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main(tyro.cli(Options))
