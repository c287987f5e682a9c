"""One update, ours and the usual loop over tasks, in one process: milliseconds and ratios.

    python benchmarks/update.py --out results/update-h200.json   # a GPU, full size
    python benchmarks/update.py --cpu --out results/update-cpu.json   # CNN4-32, 8 tasks, 2 threads
    python benchmarks/update.py --quick                          # tiny: shows that it runs

5-way 5-shot, 15 query images per class; random pixels, for time does not depend on what they show.
`loop` is benchmarks/task_loop.py in float32 (and tf32 off), `loop, bfloat16` the same by autocast
and channels-last. `plain` is our trainer without its hand-written kernels. With --cpu the ways take
turns, and `floor` is forward and backward of torch's own convolutions, BatchNorm, ReLU and pooling
on as many images in one batch.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from task_loop import TaskLoop
from timing import save_results, seconds
from torch import nn

from derts.config import ModelConfig, TrainConfig
from derts.config_file import with_values
from derts.data import ImageTable
from derts.hardware import keep_freed_memory
from derts.models import build_backbone
from derts.tasks import TaskPool
from derts.training import Trainer

WAYS = ("loop", "loop, bfloat16", "plain", "ours")
CPU_LEARNERS = ("anil", "protonet")


def images_of(size: int, quick: bool) -> ImageTable:
    """Random pixels of 64 classes."""
    count = 64 * (24 if quick else 100)
    random = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, size, size, 3), generator=random, dtype=torch.uint8)
    return ImageTable(pixels, torch.arange(count) % 64, tuple(map(str, range(64))))


def our_update(case: dict[str, Any], images: ImageTable, quick: bool) -> Callable[[], object]:
    """An update by the trainer, as `derts train --preset gpu` makes it."""
    plain = case["way"] == "plain"
    exact = case.get("cpu") and "bfloat16" not in case["way"]
    hardware = {"precision": "float32" if quick or exact else "bfloat16"}
    values = {
        "learner": {"name": case["learner"]},
        "model": {"backbone": case["backbone"], "width": case["width"]},
        "tasks": {"query": 1 if quick else 15},
        "meta_batch": case["tasks"],
        "hardware": hardware,
        "updates": 10_000,
    }
    config = with_values(TrainConfig(), values, "benchmark")
    without = mock.patch("derts.kernels.fast_embedding.usable_on", return_value=False)
    with without if plain else nullcontext():
        trainer = Trainer(config, {"train": images})
    trainer.learner.train()
    return trainer.step


def loop_update(case: dict[str, Any], images: ImageTable, quick: bool) -> Callable[[], object]:
    """An update by the loop over tasks."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = (case["size"], case["size"], 3)
    backbone = build_backbone(ModelConfig(case["backbone"], case["width"]), size)
    loop = TaskLoop(case["learner"], backbone, 5, device, case["way"] == "loop, bfloat16")
    held, numbers = images.to(device), iter(range(1_000_000))

    def update() -> float:
        pool = TaskPool.sample(
            held, tasks=case["tasks"], query=1 if quick else 15, seed=(0, "batch", next(numbers))
        )
        return loop.update(held, pool)

    return update


def floor_update(case: dict[str, Any], images: ImageTable, quick: bool) -> Callable[[], object]:
    """torch's own modules on as many images as an update has; nothing is drawn or adapted."""
    blocks: list[nn.Module] = []
    for channels in (3, *[case["width"]] * 3):
        conv = nn.Conv2d(channels, case["width"], 3, padding=1, bias=False)
        blocks += [conv, nn.BatchNorm2d(case["width"]), nn.ReLU(), nn.MaxPool2d(2)]
    layout = torch.channels_last
    network = nn.Sequential(*blocks).to(memory_format=layout)  # type: ignore[call-overload]
    count = case["tasks"] * 5 * (5 + (1 if quick else 15))
    x = torch.randn(count, 3, case["size"], case["size"]).contiguous(memory_format=layout)

    def update() -> None:
        network.zero_grad()
        network(x).square().mean().backward()

    return update


def on_cpu(options: argparse.Namespace) -> None:
    """CNN4-32, 8 tasks: the usual loop, ours and the floor, in turns."""
    torch.set_num_threads(1 if options.quick else 2)
    makes = {"loop": loop_update, "ours": our_update, "floor": floor_update}
    makes["ours, bfloat16"] = our_update
    found = []
    for size, learner in itertools.product((16,) if options.quick else (28, 64, 84), CPU_LEARNERS):
        case = {"learner": learner, "backbone": "cnn4", "size": size, "cpu": True}
        case |= {"width": 4, "tasks": 2} if options.quick else {"width": 32, "tasks": 8}
        images = images_of(size, options.quick)
        updates = {
            way: make({**case, "way": way}, images, options.quick) for way, make in makes.items()
        }
        times: dict[str, list[float]] = {way: [] for way in makes}
        load = os.getloadavg()[0]
        for _, (way, update) in itertools.product(range(options.repeats), updates.items()):
            times[way] += [1000 * value for value in seconds(update, 1, 1 if options.quick else 2)]
        middle = {way: statistics.median(each) for way, each in times.items()}
        for way, each in times.items():
            row = {**case, "way": way, "ms": middle[way], "all_ms": each, "load": load}
            found.append(row | {"times_ours": middle[way] / middle["ours"]})
            ratio = f"{middle[way] / middle['ours']:.2f} × ours"
            print(f"{learner} {size}: {way} {middle[way]:.1f} ms, {ratio}", flush=True)
        save_results(options.out, found)


def main() -> None:
    """Measure every learner, backbone and way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learners", nargs="+", default=["anil", "protonet", "maml"])
    parser.add_argument("--backbones", nargs="+", default=["cnn4", "resnet12"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cpu", action="store_true", help="the ways of a CPU, in turns")
    options = parser.parse_args()
    keep_freed_memory()
    if options.cpu:
        on_cpu(options)
        return
    size = 16 if options.quick else 84
    images, found = images_of(size, options.quick), []
    for backbone in options.backbones:
        for learner in options.learners:
            rows = []
            for way in options.ways:
                case: dict[str, Any] = {
                    "learner": learner,
                    "backbone": backbone,
                    "way": way,
                    "size": size,
                    "width": 4 if options.quick else 64,
                    "tasks": 2 if options.quick else 32,
                }
                make = loop_update if way.startswith("loop") else our_update
                rows.append(measure(case, make, images, options))
            ours = next((row.get("ms") for row in rows if row["way"] == "ours"), None)
            for row in rows:
                if ours and "ms" in row:
                    row["times_ours"] = row["ms"] / ours
                shown = f"{row['ms']:.2f} ms" if "ms" in row else row["failed"]
                ratio = f", {row['times_ours']:.2f} × ours" if "times_ours" in row else ""
                print(f"{learner} {backbone} {row['way']}: {shown}{ratio}", flush=True)
            found += rows
            save_results(options.out, found)


def measure(
    case: dict[str, Any],
    make: Callable[[dict[str, Any], ImageTable, bool], Callable[[], object]],
    images: ImageTable,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """The case with its milliseconds per update, or why there are none."""
    repeats = 1 if options.quick else options.repeats
    try:
        # loops take long enough for four; ours draws tasks ahead, which few updates would not show
        in_a_row = 1 if options.quick else 20 if case["way"] == "ours" else 4
        if case["learner"] == "maml":
            in_a_row = 1
        update = make(case, images, options.quick)
        each = [1000 * value for value in seconds(update, repeats, in_a_row)]
    except torch.OutOfMemoryError:
        return {**case, "failed": "does not fit into the GPU's memory"}
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return {**case, "ms": statistics.median(each), "all_ms": each}


if __name__ == "__main__":
    main()
