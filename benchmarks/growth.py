"""How time and memory grow: with tasks per update, image size, images in the store, pool size.

    python benchmarks/growth.py --out results/growth-h200.json    # a GPU, full size
    python benchmarks/growth.py --quick                           # tiny: shows that it runs

Random pixels; ProtoNet on CNN4-64. Updates are timed ten in a row, medians of three. The stores
lie on disk and are opened by memory-mapping, 450,000 images of 84×84 being tiered-ImageNet's size.
Pools are rows of 5 random numbers, of which 0.3 N are selected on the same device.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from timing import save_results, seconds

from derts.config import TrainConfig
from derts.config_file import apply_presets, with_values
from derts.data import ImageTable
from derts.facility_location import select
from derts.training import Trainer

Row = dict[str, Any]
CLASSES, MANY_CLASSES = 64, 351  # mini- and tiered-ImageNet's


def store(folder: Path, count: int, size: int) -> ImageTable:
    """Random images in a memory-mapped file."""
    path = folder / f"{count}-{size}.npy"
    shape = (count, size, size, 3)
    pixels = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    block = np.random.default_rng(0).integers(0, 256, (min(count, 4000), *shape[1:]), np.uint8)
    for start in range(0, count, len(block)):
        pixels[start : start + len(block)] = block[: count - start]
    pixels.flush()
    mapped = torch.from_numpy(np.load(path, mmap_mode="r+"))
    classes = CLASSES if count < 100_000 else MANY_CLASSES
    return ImageTable(mapped, torch.arange(count) % classes, tuple(map(str, range(classes))))


def forget() -> int:
    """Give back all memory that nothing needs any more; bytes of the GPU's that are still held."""
    gc.collect()  # a trainer and its CUDA graphs hold one another
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_reserved()


def taken(before: int, cuda: bool) -> float | None:
    """GiB of GPU memory at the peak, beside what was held before.

    What is reserved: a CUDA graph keeps its memory without counting it as allocated.
    """
    return (torch.cuda.max_memory_reserved() - before) / 2**30 if cuda else None


def update_row(kind: str, at: int, images: ImageTable, tasks: int, quick: bool) -> Row:
    """Milliseconds per update and memory."""
    values = {
        "learner": {"name": "protonet"},
        "model": {"width": 4 if quick else 64},
        "tasks": {"query": 2 if quick else 15},
        "meta_batch": tasks,
        "updates": 10_000,
    }
    base = TrainConfig() if quick else apply_presets(["gpu"])
    before = forget()
    trainer = Trainer(with_values(base, values, "benchmark"), {"train": images})
    trainer.learner.train()
    each = seconds(trainer.step, 1 if quick else 3, in_a_row=1 if quick else 10)
    return {
        "kind": kind,
        "at": at,
        "ms": 1000 * statistics.median(each),
        "gib": taken(before, trainer.device.type == "cuda"),
        "images_on": str(trainer.images.device),
    }


def pool_row(rows: int, device: torch.device, quick: bool) -> Row:
    """Milliseconds and memory of one selection."""
    before = forget()
    random = torch.Generator().manual_seed(0)
    points = torch.randn(rows, 5, generator=random).to(device)
    repeats = 1 if quick or rows > 20_000 else 3
    each = seconds(lambda: select(points, int(0.3 * rows)), repeats)
    memory = taken(before, device.type == "cuda")
    return {"kind": "pool", "at": rows, "ms": 1000 * statistics.median(each), "gib": memory}


def main(
    kinds: tuple[str, ...] = ("tasks", "size", "images", "pool"),
    most_rows: int = 100_000,
    folder: Path | None = None,
    out: Path | None = None,
    quick: bool = False,
) -> None:
    """Measure growth of all kinds; stores of 10 GB at full size lie in `folder` meanwhile."""
    found = []
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = {
        "tasks": [2, 4] if quick else [8, 16, 32, 64, 128],
        "size": [16, 28] if quick else [28, 42, 84, 126, 168, 224],
        "images": [2000, 4000] if quick else [12_800, 38_400, 115_200, 450_048],
        "pool": [50, 100] if quick else [1600, 3200, 6400, 12_800, 25_600, 51_200, 100_000],
    }
    side, tasks = (16, 2) if quick else (84, 32)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        plain = store(place, 2048 if quick else 12_800, side)
        for kind in kinds:
            for at in sizes[kind]:
                if kind == "tasks":
                    row = update_row(kind, at, plain, at, quick)
                elif kind == "size":
                    images = store(place, 2048 if quick else 6400, at)
                    row = update_row(kind, at, images, tasks, quick)
                elif kind == "images":
                    row = update_row(kind, at, store(place, at, side), tasks, quick)
                elif at <= most_rows:
                    row = pool_row(at, device, quick)
                else:
                    continue
                memory = "" if row["gib"] is None else f", {row['gib']:.2f} GiB"
                print(f"{kind} {at:,}: {row['ms']:.2f} ms{memory}", flush=True)
                found.append(row)
    save_results(out, found)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
