"""What drawing tasks costs, against sorting random keys over all images of a class (the old way).

    python benchmarks/drawing.py results/drawing-cpu.json

Tasks of 5 ways, 5 + 15 images, from 64 classes of 600 images (or of 300 to 900), alone and beside
processes that keep other cores busy. Milliseconds are medians; `cpu` is processor time, which
other processes on the same core do not add to.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from derts.config import AugmentConfig, TaskConfig, TrainConfig
from derts.data import ImageTable
from derts.files import write_atomically
from derts.provenance import code_version, machine
from derts.tasks import TaskPool, generator
from derts.training.task_drawer import BLOCK, TaskDrawer

CLASSES, WAY, SHOT, QUERY = 64, 5, 5, 15
META_BATCH, POOL = 32, 3200
UPDATES = 2 * BLOCK  # whose meta-batches are drawn in one measurement
NOISES: tuple[Literal["none", "swap", "tasks"], ...] = ("none", "swap", "tasks")


@dataclass(frozen=True)
class Options:
    """Options of this benchmark."""

    out: Annotated[Path, tyro.conf.Positional]
    """The JSON file to write."""
    repeats: int = 15
    """Of each measurement."""
    busy: int = max(1, (os.cpu_count() or 2) - 1)
    """Processes that keep other cores busy in the second half of the measurements."""


def table(equal: bool) -> ImageTable:
    """64 classes of 600 images, or of 300 to 900; the images are single pixels."""
    sizes = [600 if equal else 300 + 600 * number // (CLASSES - 1) for number in range(CLASSES)]
    labels = torch.arange(CLASSES).repeat_interleave(torch.tensor(sizes))
    pixels = torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8)
    return ImageTable(pixels, labels, tuple(map(str, range(CLASSES))))


class SortedKeys:
    """The old way: a random key for every image of a class, of which the largest are taken."""

    def __init__(self, images: ImageTable) -> None:
        groups = images.class_indices()
        self.indices = torch.nn.utils.rnn.pad_sequence(groups, batch_first=True)
        sizes = torch.tensor([len(group) for group in groups])
        self.absent = torch.arange(self.indices.shape[1])[None] >= sizes[:, None]

    def draw(self, tasks: int, number: int) -> TaskPool:
        """A clean pool."""
        random = generator((0, "keys", number))
        classes = torch.rand(tasks, CLASSES, generator=random).topk(WAY, 1).indices
        parts = []
        for part in classes.flatten().split((1 << 23) // self.indices.shape[1]):
            keys = torch.rand(len(part), self.indices.shape[1], generator=random)
            if self.absent.any():
                keys.masked_fill_(self.absent[part], -1.0)
            places = keys.topk(SHOT + QUERY, 1).indices
            parts.append(self.indices[part[:, None], places])
        slots = torch.cat(parts).reshape(tasks, WAY, -1)
        labels = torch.arange(WAY)[None, :, None].expand_as(slots)
        support, query, given, asked = (
            values[:, :, which].reshape(tasks, -1)
            for values in (slots, labels)
            for which in (slice(SHOT), slice(SHOT, None))
        )
        return TaskPool(support, given, query, asked, given.clone(), asked.clone(), WAY)


def cases() -> dict[str, tuple[Callable[[int], object], int]]:
    """What is measured: a function of a number, and how many meta-batches or pools it draws."""
    found: dict[str, tuple[Callable[[int], object], int]] = {}
    for kind, images in (("equal", table(True)), ("unequal", table(False))):
        for noise in NOISES:
            config = TrainConfig(
                tasks=TaskConfig(WAY, SHOT, QUERY, noise=noise),
                augment=AugmentConfig(horizontal_flip=True),
            )
            drawer = TaskDrawer(config, images)
            name = f"{kind} classes" if noise == "none" else f"{kind} classes, noise {noise}"
            found[f"batch, {name}"] = partial(_batches, drawer), UPDATES
            found[f"pool, {name}"] = partial(drawer.draw, POOL, "pool"), 1
        found[f"batch, {kind} classes, augmentation alone"] = partial(_augment, drawer), UPDATES
        keys = SortedKeys(images)
        found[f"batch, {kind} classes, sorted keys"] = partial(keys.draw, META_BATCH), 1
        found[f"pool, {kind} classes, sorted keys"] = partial(keys.draw, POOL), 1
    return found


def _batches(drawer: TaskDrawer, number: int) -> None:
    for update in range(number * UPDATES, (number + 1) * UPDATES):
        drawer.draw(META_BATCH, "batch", update)


def _augment(drawer: TaskDrawer, number: int) -> None:
    pool = drawer.draw(META_BATCH, "batch", 0)
    for update in range(number * UPDATES, (number + 1) * UPDATES):
        drawer.augmented(pool, update)


def spin() -> None:
    """Keep a core busy for ever."""
    while True:
        pass


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Beside `count` processes that compute."""
    spawn = multiprocessing.get_context("spawn")
    others = [spawn.Process(target=spin, daemon=True) for _ in range(count)]
    try:
        for other in others:
            other.start()
        time.sleep(2.0 if others else 0.0)  # until they have started
        yield
    finally:
        for other in others:
            other.terminate()
            other.join()


def measure(repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of all cases, by turns, so that a change of load meets all alike."""
    what = cases()
    walls: dict[str, list[float]] = {name: [] for name in what}
    processor: dict[str, list[float]] = {name: [] for name in what}
    for number in range(repeats + 1):
        for name, (draw, parts) in what.items():
            begun, begun_cpu = time.perf_counter(), time.process_time()
            draw(number)
            if number:  # the first one warms up
                walls[name].append(1e3 * (time.perf_counter() - begun) / parts)
                processor[name].append(1e3 * (time.process_time() - begun_cpu) / parts)
    return {
        name: {
            "ms": round(statistics.median(values), 4),
            "fastest_ms": round(min(values), 4),
            "cpu_ms": round(statistics.median(processor[name]), 4),
        }
        for name, values in walls.items()
    }


def main(options: Options) -> None:
    """Measure alone and beside busy cores, print, write."""
    results: dict[str, Any] = {
        "machine": machine(),
        "code": code_version(),
        "load_before": os.getloadavg()[0],
        "threads_of_sorted_keys": torch.get_num_threads(),
        "busy_processes": options.busy,
        "repeats": options.repeats,
    }
    for condition, count in (("alone", 0), ("beside busy cores", options.busy)):
        with busy_cores(count):
            found = results[condition] = measure(options.repeats)
        print(f"{condition}: median ms (cpu ms), and how many times faster than sorted keys")
        for name, row in found.items():
            peer = found[", ".join(name.split(", ")[:2]) + ", sorted keys"]
            ratio = "" if peer is row else f"{peer['ms'] / row['ms']:8.1f}×"
            print(f"  {name:50s} {row['ms']:9.3f} ({row['cpu_ms']:.3f}) {ratio}")
    write_atomically(options.out, (json.dumps(results, indent=1) + "\n").encode())


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
