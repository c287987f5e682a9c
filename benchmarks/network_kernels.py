"""The networks' kernels against their plain counterparts; a part of benchmarks/kernels.py."""

from __future__ import annotations

from functools import partial

import torch
from kernel_checks import STORED, SUMMED, Row, difference, pixels, random, row
from plain_operations import PlainOperations
from timing import gpu_milliseconds
from torch import Tensor

from derts.kernels.functions import KernelOperations
from derts.models.pieces import Norm

PLAIN, FUSED = PlainOperations(), KernelOperations()


def first_block() -> list[Row]:
    """Patch products, and convolution with ReLU and pooling, forward and backward."""
    few, many = pixels(64), FUSED.prepare(pixels(3200))
    ours, theirs = FUSED.prepare(few), PLAIN.prepare(few)
    weight = (0.3 * random(64, 3, 3, 3)).bfloat16().float().requires_grad_()
    shift = random(64).requires_grad_()
    pooled, expected = (
        operations.conv_relu_pool(prepared, weight, shift)
        for operations, prepared in ((FUSED, ours), (PLAIN, theirs))
    )
    upstream = random(*expected.shape)
    gradients, expected_gradients = (
        torch.autograd.grad((value.float() * upstream).sum(), (weight, shift))
        for value in (pooled, expected)
    )
    large = FUSED.conv_relu_pool(many, weight, shift)
    change = random(*large.shape).bfloat16().contiguous(memory_format=torch.channels_last)
    products = max(
        difference(FUSED.patch_products(ours, 3), PLAIN.patch_products(theirs, 3)),
        difference(FUSED.image_patch_products(ours, 3), PLAIN.image_patch_products(theirs, 3)),
    )
    to_weight = difference(gradients[0], expected_gradients[0])
    return [
        row(
            "patch products",
            products,
            SUMMED,
            gpu_milliseconds(lambda: FUSED.patch_products(many, 3)),
        ),
        row(
            "convolution, ReLU, pooling from pixels",
            difference(pooled, expected),
            STORED,
            gpu_milliseconds(lambda: FUSED.conv_relu_pool(many, weight, shift)),
        ),
        row(
            "the same, backward",
            max(to_weight, difference(gradients[1], expected_gradients[1])),
            SUMMED,
            gpu_milliseconds(
                lambda: torch.autograd.grad(large, (weight, shift), change, retain_graph=True)
            ),
        ),
    ]


def norm_pool() -> list[Row]:
    """BatchNorm, ReLU and pooling of the other blocks, whose sizes are even and odd."""
    found = []
    for size in (42, 21, 10):
        values = random(64, 64, size, size).bfloat16().to(memory_format=torch.channels_last)
        weight, bias = random(64).requires_grad_(), random(64).requires_grad_()
        norm = Norm(weight, bias, *PLAIN.moments(values.float()), 1e-5, True)
        moments = zip(FUSED.moments(values), (norm.mean, norm.variance), strict=True)
        sums = [difference(a, b) for a, b in moments]
        ours, theirs = values.clone().requires_grad_(), values.float().requires_grad_()
        pooled = FUSED.norm_relu_pool(ours, norm)
        expected = PLAIN.norm_relu_pool(theirs, norm)
        upstream = random(*expected.shape)
        to_ours = torch.autograd.grad((pooled.float() * upstream).sum(), (ours, weight, bias))
        to_theirs = torch.autograd.grad((expected * upstream).sum(), (theirs, weight, bias))
        apart = [difference(a, b) for a, b in zip(to_ours, to_theirs, strict=True)]
        large = random(3200, 64, size, size).bfloat16().to(memory_format=torch.channels_last)
        large.requires_grad_()
        forward = gpu_milliseconds(partial(FUSED.norm_relu_pool, large, norm))
        made = FUSED.norm_relu_pool(large, norm)
        change = torch.ones_like(made)
        backward = gpu_milliseconds(
            partial(torch.autograd.grad, made, large, change, retain_graph=True)
        )
        time = gpu_milliseconds(partial(FUSED.moments, large))
        whole = difference(pooled, expected)
        found += [
            row(f"moments, {size}×{size}", max(sums), SUMMED, time),
            row(f"BatchNorm, ReLU, pooling, {size}×{size}", whole, STORED, forward),
            row(f"the same, backward, {size}×{size}", apart[0], STORED, backward),
            row(f"its weight and bias, {size}×{size}", max(apart[1:]), SUMMED, backward),
        ]
    return found


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
            times.append(gpu_milliseconds(mine))
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


Prepared = tuple[tuple[PlainOperations | KernelOperations, Tensor], ...]


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
    forward = gpu_milliseconds(lambda: FUSED.conv_leaky(many, weight, shift, 0.1))
    backward = gpu_milliseconds(
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
    backward = gpu_milliseconds(
        lambda: torch.autograd.grad(large, (start, weight), change, retain_graph=True)
    )
    return [
        row(
            "end of a block from pixels", difference(made, expected), STORED, gpu_milliseconds(join)
        ),
        row("the same, backward", apart[0], STORED, backward),
        # of two positions that all but tie, rounding may choose another
        row("its weights", max(apart[1:]), STORED, backward),
    ]
