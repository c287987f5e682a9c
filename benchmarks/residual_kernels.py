"""ResNet-12's kernels against their plain counterparts; a part of benchmarks/kernels.py."""

from __future__ import annotations

from functools import partial

import torch
from kernel_checks import STORED, Row, difference, milliseconds, pixels, random, row
from torch import Tensor

from derts.kernels.residual_operations import FusedResidual, Norm, PlainResidual, ResidualOperations

PLAIN, FUSED = PlainResidual(), FusedResidual()


def residual() -> list[Row]:
    """ResNet-12's BatchNorm with leaky ReLU, and the ends of its blocks."""
    found = []
    for channels, size in ((64, 84), (128, 42), (256, 21), (512, 10)):
        parts = [random(32, channels, size, size) for _ in range(2)]
        weights = [random(channels).requires_grad_() for _ in range(4)]
        norms = [
            Norm(weight, bias, *PLAIN.moments(part), 1e-5, True)
            for part, weight, bias in zip(parts, weights[::2], weights[1::2], strict=True)
        ]
        last = torch.channels_last
        ours = [part.bfloat16().to(memory_format=last).requires_grad_() for part in parts]
        theirs = [part.clone().requires_grad_() for part in parts]
        apart, times = [], []
        one = (norms[0], 0.1)
        for mine, other in (
            (partial(FUSED.norm_leaky, ours[0], *one), partial(PLAIN.norm_leaky, theirs[0], *one)),
            (
                partial(FUSED.join, ours[0], norms[0], ours[1], norms[1], 0.1),
                partial(PLAIN.join, theirs[0], norms[0], theirs[1], norms[1], 0.1),
            ),
        ):
            made, expected = mine(), other()
            upstream = random(*expected.shape)
            used = slice(None) if made.shape != ours[0].shape else slice(1)
            to_ours = torch.autograd.grad((made.float() * upstream).sum(), ours[used])
            to_theirs = torch.autograd.grad((expected * upstream).sum(), theirs[used])
            differences = [difference(a, b) for a, b in zip(to_ours, to_theirs, strict=True)]
            apart.append(max(difference(made, expected), *differences))
            times.append(milliseconds(mine))
        shape = f"{channels} × {size}×{size}, 32 images"
        found += [
            row(f"BatchNorm, leaky ReLU and their backward, {shape}", apart[0], STORED, times[0]),
            row(f"end of a block and its backward, {shape}", apart[1], STORED, times[1]),
        ]
    return found


def residual_pixels() -> list[Row]:
    """The first block's kernels that read pixels."""
    few, many = pixels(64), FUSED.prepare(pixels(3200))
    both = ((FUSED, FUSED.prepare(few)), (PLAIN, PLAIN.prepare(few)))
    return _conv_leaky(both, many) + _join_pixels(both, many)


Prepared = tuple[tuple[ResidualOperations, Tensor], ...]


def _conv_leaky(both: Prepared, many: Tensor) -> list[Row]:
    weight, shift = 0.3 * random(64, 3, 3, 3), random(64).requires_grad_()
    weight = weight.bfloat16().float().requires_grad_()
    made, expected = (one.conv_leaky(images, weight, shift, 0.1) for one, images in both)
    upstream = random(*expected.shape)
    ours, theirs = (
        torch.autograd.grad((value.float() * upstream).sum(), (weight, shift))
        for value in (made, expected)
    )
    large = FUSED.conv_leaky(many, weight, shift, 0.1)
    change = torch.randn_like(large)
    forward = milliseconds(lambda: FUSED.conv_leaky(many, weight, shift, 0.1))
    backward = milliseconds(
        lambda: torch.autograd.grad(large, (weight, shift), change, retain_graph=True)
    )
    # gradients that leaky scales are rounded to bfloat16 once more before they are summed
    apart = max(difference(a, b) for a, b in zip(ours, theirs, strict=True))
    return [
        row("convolution, leaky ReLU from pixels", difference(made, expected), STORED, forward),
        row("the same, backward", apart, STORED, backward),
    ]


def _join_pixels(both: Prepared, many: Tensor) -> list[Row]:
    main = random(64, 64, 84, 84).to(memory_format=torch.channels_last)
    weights = [random(64, 3), *(random(64) for _ in range(3))]
    weight, shift, norm_weight, norm_bias = (value.requires_grad_() for value in weights)
    norm = Norm(norm_weight, norm_bias, *PLAIN.moments(main), 1e-5, True)
    mains = (main.bfloat16().requires_grad_(), main.requires_grad_())
    made, expected = (
        one.join_pixels(value, norm, images, weight, shift, 0.1)
        for value, (one, images) in zip(mains, both, strict=True)
    )
    upstream = random(*expected.shape)
    ours, theirs = (
        torch.autograd.grad(
            (end.float() * upstream).sum(), (start, weight, shift, norm_weight, norm_bias)
        )
        for start, end in zip(mains, (made, expected), strict=True)
    )
    apart = [difference(a, b) for a, b in zip(ours, theirs, strict=True)]
    start = torch.randn(3200, 84, 84, 64, device=main.device, dtype=torch.bfloat16)
    start = start.permute(0, 3, 1, 2).requires_grad_()
    join = partial(FUSED.join_pixels, start, norm, many, weight, shift, 0.1)
    large = join()
    change = torch.randn_like(large)
    backward = milliseconds(
        lambda: torch.autograd.grad(large, (start, weight), change, retain_graph=True)
    )
    return [
        row("end of a block from pixels", difference(made, expected), STORED, milliseconds(join)),
        row("the same, backward", apart[0], STORED, backward),
        # of two positions that all but tie, rounding may choose another
        row("its weights", max(apart[1:]), STORED, backward),
    ]
