"""Every hand-written kernel against its plain counterpart, on a GPU: differences and times.

    python benchmarks/kernels.py --out results/kernels-h200.json

A difference is ‖kernel − plain‖ / ‖plain‖ on fresh random input, plain in float32 (tf32 off). What
is stored in bfloat16 may differ by 0.004, sums in float32 by 1e-5, selections not at all; the
program ends with exit code 1 where one does. Times are medians at the size of an update of 32 tasks
of 100 images of 84×84 (a pool of 3,200 tasks for the last two).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from kernel_checks import DEVICE, STORED, SUMMED, Row, difference, pixels, random, row
from timing import gpu_milliseconds, save_results
from torch import Tensor

from derts.config_file import apply_presets, with_values
from derts.data import ImageTable
from derts.facility_location.distances import Distances
from derts.facility_location.greedy import greedy as plain_greedy
from derts.facility_location.on_gpu import DeviceDistances
from derts.kernels import usable_on
from derts.tasks import apply_augmentation
from derts.training import Trainer


def augmentation() -> list[Row]:
    """Augmented images: as on the CPU, and the same in a recorded update as in one that is not."""
    images, drawn = pixels(3200), torch.randint(-8, 9, (3200, 3), device=DEVICE)
    drawn[:, 0].clamp_(0, 1)
    ours = apply_augmentation(images, drawn).cpu()
    wrong = int((ours != apply_augmentation(images.cpu(), drawn.cpu())).sum())
    time = gpu_milliseconds(lambda: apply_augmentation(images, drawn))
    values = {
        "augment": {"horizontal_flip": True, "translation": 8},
        "meta_batch": 4,
        "updates": 10,
    }
    table = ImageTable(images, torch.arange(3200) % 64, tuple(map(str, range(64))))
    losses = []
    for records in (True, False):
        trainer = Trainer(
            with_values(apply_presets(["gpu"]), values, "augmented"), {"train": table}
        )
        trainer.updater.captures &= records
        trainer.learner.train()
        losses.append(torch.stack([trainer.step()[0] for _ in range(6)]))
    return [
        row("augmented images (plain torch), beside a CPU's", wrong, 0, time),
        row("losses of updates with them, recorded or not", difference(*losses), STORED, 0.0),
    ]


def without_matrix(distances: DeviceDistances, k: int) -> tuple[Tensor, ...]:
    """Picks, gains and nearest distances by the kernel for large pools."""
    distances.kept, kept = None, distances.kept
    found = distances.greedy(k)
    distances.kept = kept
    return found


def host_greedy(points: Tensor, k: int) -> tuple[Tensor, ...]:
    """The same by the CPU's engine."""
    plain = plain_greedy(Distances(points.cpu(), 2.0), k, 2.0)
    return tuple(torch.from_numpy(values).to(DEVICE) for values in plain)


def pool_kernels() -> list[Row]:
    """Inner products and greedy selection of a pool of 3,200 tasks."""
    from derts.facility_location.gpu_kernels import greedy_kept
    from derts.kernels.inner_products import inner_products

    features, rows = random(38_400, 1600), torch.randint(0, 38_400, (3200, 100), device=DEVICE)
    found = inner_products(features, rows, 25)
    some = features[rows[:50]].double()
    apart = difference(found[:50], some @ some[:, :25].transpose(1, 2))
    time = gpu_milliseconds(lambda: inner_products(features, rows, 25))
    answers = [row("inner products", apart, SUMMED, time)]
    for dimensions in (5, 500):
        points = torch.randn(3200, dimensions, device=DEVICE)
        points[1::7] = points[::7][: len(points[1::7])].round()  # ties
        matrix = DeviceDistances(points, 2.0).kept
        assert matrix is not None
        if dimensions == 5:
            plain = Distances(points.cpu(), 2.0).rows(np.arange(len(points)))
            wrong = int((matrix.cpu() != torch.from_numpy(plain)).sum())
            time = gpu_milliseconds(lambda p=points: DeviceDistances(p, 2.0))  # type: ignore[misc]
            answers.append(row("distances between all pairs, d = 5", wrong, 0, time))
            turned = DeviceDistances(points.T.contiguous().T, 2.0).kept
            assert turned is not None
            wrong = int((turned != matrix).sum())
            answers.append(row("the same of points that lie column by column", wrong, 0, time))
        pairs = zip(greedy_kept(matrix, 960), host_greedy(points, 960), strict=True)
        wrong = sum(int((a != b).sum()) for a, b in pairs)
        time = gpu_milliseconds(lambda m=matrix: greedy_kept(m, 960))  # type: ignore[misc]
        answers.append(row(f"greedy selection, d = {dimensions}", wrong, 0, time))
    for size in (3200, 20_000):
        points = torch.randn(size, 5, device=DEVICE).round(decimals=1)  # ties
        distances, k = DeviceDistances(points, 2.0), size // 10
        ours = without_matrix(distances, k)
        kept = distances.kept
        other = host_greedy(points, k) if kept is None else greedy_kept(kept, k)
        wrong = sum(int((a != b).sum()) for a, b in zip(ours, other, strict=True))
        time = gpu_milliseconds(lambda d=distances, n=k: without_matrix(d, n))  # type: ignore[misc]
        answers.append(row(f"greedy selection without a matrix, N = {size:,}", wrong, 0, time))
    return answers


def main() -> None:
    """Check all kernels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not usable_on(DEVICE) or not torch.cuda.is_available():
        sys.exit("the kernels need an NVIDIA GPU and Triton; the plain path is tested everywhere")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    from maml_kernels import maml_kernels  # needs Triton
    from network_kernels import first_block, norm_pool, residual, residual_pixels

    torch.manual_seed(0)
    found = first_block() + norm_pool() + residual() + residual_pixels()
    found += maml_kernels() + pool_kernels() + augmentation()
    save_results(options.out, found)
    sys.exit(any(float(one["difference"]) > float(one["allowed"]) for one in found))


if __name__ == "__main__":
    main()
