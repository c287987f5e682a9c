"""The kernels of MAML's tasks against plain torch; a part of benchmarks/kernels.py."""

from __future__ import annotations

from functools import partial

import torch
from kernel_checks import DEVICE, STORED, SUMMED, Row, difference, random, row
from timing import gpu_milliseconds

from derts.kernels import task_kernels as ours
from derts.kernels import task_operations as plain

TASKS, IMAGES, QUICK = 32, 25, 2


def maml_kernels() -> list[Row]:
    """Convolution, filters' gradient, max-pool and its gradients at sizes of CNN4's blocks."""
    return [*_block(9, 64, 42), *_block(9, 64, 21), *_block(1, 32, 84)]


def _block(taps: int, inputs: int, side: int) -> list[Row]:
    def drawn(tasks: int, *shape: int) -> torch.Tensor:
        return random(tasks, IMAGES, *shape)

    name = f"of {TASKS} tasks, {side}×{side}"
    few, filters = drawn(QUICK, side, side, inputs), random(QUICK, taps, inputs, 64) / 16
    found = ours.convolved(few.bfloat16(), filters)
    expected = plain.convolved(few, filters)
    upstream = drawn(QUICK, side, side, 64)
    to_filters = ours.filter_gradient(few.bfloat16(), upstream.bfloat16(), filters.shape)
    pool = _pool(upstream)
    many = drawn(TASKS, side, side, inputs).bfloat16()
    filters = random(TASKS, taps, inputs, 64) / 16
    change = ours.convolved(many, filters)
    places = ours.pool(change, IMAGES)[1]
    constant, slope = random(2, TASKS, 64)
    arriving = torch.zeros(places.shape, dtype=torch.bfloat16, device=DEVICE)
    gradient = plain.filter_gradient(few, upstream, to_filters.shape)
    calls = (
        (
            "convolution",
            difference(found, expected),
            STORED,
            partial(ours.convolved, many, filters),
        ),
        (
            "gradient in filters",
            difference(to_filters, gradient),
            STORED,
            partial(ours.filter_gradient, many, change, filters.shape),
        ),
        ("max-pool and sums", pool[0], SUMMED, partial(ours.pool, change, IMAGES)),
        (
            "its gradient",
            pool[1],
            STORED,
            partial(ours.spread, change, arriving, constant, slope, places, IMAGES),
        ),
        (
            "the gradient of that",
            pool[2],
            STORED,
            partial(ours.collect, change, change, slope, places, IMAGES),
        ),
    )
    return [
        row(f"{kind} {name}", far, allowed, gpu_milliseconds(call))
        for kind, far, allowed, call in calls
    ]


def _pool(values: torch.Tensor) -> tuple[float, float, float]:
    """Largest differences of what `pool`, `spread` and `collect` give, context 20 of 25 images."""
    low = values.bfloat16()
    found, expected = ours.pool(low, 20), plain.pool(values, 20)
    constant, slope = random(2, len(values), values.shape[-1])
    arriving, change = random(*expected[0].shape), random(*values.shape)
    spread = (
        ours.spread(low, arriving.bfloat16(), constant, slope, found[1], 20),
        plain.spread(values, arriving, constant, slope, expected[1], 20),
    )
    collected = (
        ours.collect(change.bfloat16(), low, slope, found[1], 20),
        plain.collect(change, values, slope, expected[1], 20),
    )
    return (
        max(difference(found[number], expected[number]) for number in (0, 2, 3)),
        difference(*spread),
        max(map(difference, *collected)),
    )
