"""How long `label_trust` takes and how much memory, up to 1,000,000 × 512 with 1,000 classes.

    python benchmarks/label_trust.py --out results/label-trust-h200.json    # a GPU, full size
    python benchmarks/label_trust.py --most 100000 --out results/label-trust-cpu.json
    python benchmarks/label_trust.py --quick                                # shows that it runs

Rows are drawn around random class means; 40% of the labels are of any other class, or 20% of the
next one. Memory is the peak beside rows and labels: on a GPU what its allocator gave out, on a CPU
what the process grew by. Each size has a process of its own.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from timing import save_results

from derts import label_trust
from derts.labels.known_errors import score_detection

DIM, PER_CLASS, GIB = 512, 1000, 2**30
APART = 0.19  # of class means, in each dimension; rows are spread by 1 around them
NOISES = {"symmetric": 0.4, "pair": 0.2}


@dataclass(frozen=True)
class Options:
    most: int = 1_000_000
    """Images, at most."""
    quick: bool = False
    out: Path | None = None


def clusters(images: int, classes: int, noise: str, device: str) -> tuple[torch.Tensor, ...]:
    """Rows [n, DIM], given labels and which of them are wrong."""
    random = torch.Generator(device).manual_seed(0)
    true = torch.arange(images, device=device) % classes
    means = APART * torch.randn(classes, DIM, generator=random, device=device)
    rows = torch.randn(images, DIM, generator=random, device=device)
    for start in range(0, images, 100_000):
        rows[start : start + 100_000] += means[true[start : start + 100_000]]
    wrong = torch.rand(images, generator=random, device=device) < NOISES[noise]
    steps = torch.randint(1, classes, (images,), generator=random, device=device)
    steps = steps if noise == "symmetric" else torch.ones_like(steps)
    return rows, torch.where(wrong, (true + steps) % classes, true), wrong


def peak(device: str) -> int:
    """Bytes at the most so far."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(images: int, noise: str, device: str) -> dict[str, Any]:
    """One size: seconds, GiB and what was found."""
    classes = max(10, images // PER_CLASS)
    label_trust(*clusters(2000, 10, noise, device)[:2])  # libraries are loaded
    rows, given, wrong = clusters(images, classes, noise, device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    before, start = peak(device), time.perf_counter()
    trust = label_trust(rows, given)
    seconds = time.perf_counter() - start  # trust is on the CPU: the GPU is done
    score = score_detection(trust.probability, wrong.cpu())
    return {
        "images": images, "classes": classes, "dim": DIM, "noise": noise, "device": device,
        "seconds": seconds, "gib": (peak(device) - before) / GIB, "confused": trust.confused,
        "average_precision": score.average_precision,
        "estimated": score.estimated, "true": score.true,
    }  # fmt: skip


def main(options: Options) -> None:
    """Every size up to the largest."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = [2000] if options.quick else [10_000, 100_000, 1_000_000]
    found = []
    for images in [size for size in sizes if size <= options.most]:
        for noise in NOISES:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                row = pool.apply(measure, (images, noise, device))
            found.append(row)
            print(
                f"{images:9,} × {DIM}, {row['classes']} classes, {noise}: {row['seconds']:.1f} s, "
                f"{row['gib']:.2f} GiB, average precision {row['average_precision']:.3f}, "
                f"wrong {row['estimated']:.3f} ({row['true']:.3f})",
                flush=True,
            )
            save_results(options.out, found)


if __name__ == "__main__":
    main(tyro.cli(Options))
