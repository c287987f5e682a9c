"""Convolutions with BatchNorm over more images than memory holds at once, and exactly the same.

BatchNorm's statistics are those of all images, in the gradient too. So each piece of the images
goes through a block's convolutions twice in each direction: for what all pieces must know, and for
what follows from it. Only a block's inputs and its output are kept.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from derts.models.batch_norm import BatchNorm


class Norm(NamedTuple):
    """A BatchNorm: weight and bias [C], the mean and variance [C] that it normalises by.

    `batch`: they are those of the values, so that gradients flow through them too.
    """

    weight: Tensor
    bias: Tensor
    mean: Tensor
    variance: Tensor
    eps: float
    batch: bool


Layer = tuple[nn.Conv2d, BatchNorm]
Finish = Callable[[Sequence[Tensor], Sequence[Norm]], Tensor]
Moments = Callable[[Tensor], tuple[Tensor, Tensor]]


def conv_norm(
    layers: Sequence[Layer], inputs: Sequence[Tensor], finish: Callable[..., Tensor]
) -> Tensor:
    """What `finish` makes of norm(conv(x)) for each layer and its input [n, C, H, W]."""
    if not is_cut(layers, inputs):
        return finish(*(norm(conv(x)) for (conv, norm), x in zip(layers, inputs, strict=True)))
    kind = inputs[0].device.type
    if torch.is_autocast_enabled(kind):
        inputs = [x.to(torch.get_autocast_dtype(kind)) for x in inputs]
    with torch.autocast(kind, enabled=False):  # statistics are float32
        return in_pieces(layers, inputs, lambda x, n: finish(*map(_normed, x, n)), _moments)


def is_cut(layers: Sequence[Layer], inputs: Sequence[Tensor]) -> bool:
    """Whether so many images are cut into pieces: where a gradient wants what is kept of them."""
    norm = layers[0][1]
    training = norm.training and norm.context is None and torch.is_grad_enabled()
    return training and norm.at_once is not None and norm.at_once < len(inputs[0])


def in_pieces(
    layers: Sequence[Layer], inputs: Sequence[Tensor], finish: Finish, moments: Moments
) -> Tensor:
    """`finish` of the layers' convolutions and norms, `at_once` images of them at a time.

    finish   is given values [m, C, H, W] and a norm, with constants as statistics, for each layer
    moments  mean and biased variance [C] of values
    """
    parameters = [x for conv, norm in layers for x in (conv.weight, norm.weight, norm.bias)]
    block = _Block(layers, finish, moments)
    found: Tensor = _InPieces.apply(block, *inputs, *parameters)  # type: ignore[no-untyped-call]
    return found


def set_at_once(blocks: nn.Sequential, images: int | None) -> None:
    """Let a network's first block take at most so many images at a time while it trains.

    Later blocks, each of a quarter of the pixels, take as many as are of the same size.
    """
    width = None
    for number, block in enumerate(blocks):
        for norm in block.modules():
            if isinstance(norm, BatchNorm):
                width = width or norm.num_features
                norm.at_once = images and images * 4**number * width // norm.num_features


class _Block:
    """What the pieces of a block's images have in common."""

    def __init__(self, layers: Sequence[Layer], finish: Finish, moments: Moments) -> None:
        self.layers, self.finish, self.moments = layers, finish, moments
        self.norms: list[Norm] = []
        self.counts: list[Tensor] = []  # values per channel of all pieces

    def parts(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        at_once = self.layers[0][1].at_once
        assert at_once is not None
        return list(zip(*(x.split(at_once) for x in tensors), strict=True))

    def convolved(self, inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
        each = zip(inputs, weights, self.layers, strict=True)
        return [F.conv2d(x, w.to(x.dtype), padding=conv.padding) for x, w, (conv, _) in each]

    def look(self, inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        """Find the statistics of all pieces; the running ones move towards them."""
        parts = self.parts(*inputs)
        looks = [[self._look(x) for x in self.convolved(part, weights)] for part in parts]
        for (_, norm), found in zip(self.layers, zip(*looks, strict=True), strict=True):
            counts, means, variances = map(torch.stack, zip(*found, strict=True))
            count = _total(norm, counts.sum())
            mean = _total(norm, counts @ means) / count
            variance = _total(norm, counts @ (variances + (means - mean).square())) / count
            norm.move_statistics(mean, variance * count / (count - 1).clamp(min=1))
            self.norms.append(Norm(norm.weight, norm.bias, mean, variance, norm.eps, False))
            self.counts.append(count)

    def _look(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance = self.moments(values)
        return mean.new_full((), values.numel() // values.shape[1]), mean, variance

    def through_statistics(self, n: int, to_weight: Tensor, to_bias: Tensor) -> list[Tensor]:
        """What a value's gradient gets through mean and variance: factor, constant [C, 1, 1]."""
        norm, own = self.norms[n], self.layers[n][1]
        inverse = torch.rsqrt(norm.variance + norm.eps)
        scale = norm.weight * inverse / self.counts[n]
        factor = -scale * inverse * _total(own, to_weight)
        constant = -scale * _total(own, to_bias) - factor * norm.mean
        return [factor[:, None, None], constant[:, None, None]]

    def affine_gradients(
        self, part: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Of a piece, inputs and what arrives behind them: of the norms' weights and biases."""
        *inputs, arriving = part
        values = self.convolved(inputs, weights)
        affine = [x.detach().requires_grad_() for norm in self.norms for x in norm[:2]]
        norms = [
            norm._replace(weight=weight, bias=bias)
            for norm, weight, bias in zip(self.norms, affine[::2], affine[1::2], strict=True)
        ]
        with torch.enable_grad():
            out = self.finish(values, norms)
        return torch.autograd.grad(out, affine, arriving)

    def other_gradients(
        self,
        part: Sequence[Tensor],
        weights: Sequence[Tensor],
        through: Sequence[list[Tensor]],
        wanted: Sequence[bool],
    ) -> list[Tensor]:
        """Of a piece: of the inputs that want one, and of the filters."""
        *inputs, arriving = part
        leaves = [x.detach() for x in (*inputs, *weights)]
        wanting = [x.requires_grad_() for x, want in zip(leaves, wanted, strict=True) if want]
        with torch.enable_grad():
            values = self.convolved(leaves[: len(inputs)], leaves[len(inputs) :])
            apart = [value.detach().requires_grad_() for value in values]
            changes = list(torch.autograd.grad(self.finish(apart, self.norms), apart, arriving))
        for n, (factor, constant) in enumerate(through):
            more = (apart[n].detach() * factor).add_(constant)
            changes[n] = more.add_(changes[n]).to(apart[n].dtype)
        return list(torch.autograd.grad(values, wanting, changes))


class _InPieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, block: _Block, *tensors: Tensor) -> Tensor:
        inputs, weights = tensors[: len(block.layers)], tensors[len(block.layers) :: 3]
        block.look(inputs, weights)
        ctx.block = block
        ctx.save_for_backward(*tensors)
        whole, end = torch.empty(0), 0
        for part in block.parts(*inputs):
            out = block.finish(block.convolved(part, weights), block.norms)
            if not end:
                shape = len(inputs[0]), *out.shape[1:]
                whole = torch.empty(
                    shape, dtype=out.dtype, device=out.device, memory_format=torch.channels_last
                )
            whole[end : end + len(out)] = out
            end += len(out)
        return whole

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        block: _Block = ctx.block
        count = len(block.layers)
        inputs, weights = ctx.saved_tensors[:count], ctx.saved_tensors[count::3]
        # gradients of the norms' weights and biases are sums over all pieces …
        affine = [torch.zeros_like(x) for norm in block.norms for x in norm[:2]]
        for part in block.parts(*inputs, upstream[0]):
            torch._foreach_add_(affine, block.affine_gradients(part, weights))
        through = [block.through_statistics(n, *affine[2 * n :][:2]) for n in range(count)]
        # … which those of filters and inputs depend on
        wanted = [*ctx.needs_input_grad[1 : count + 1], *[True] * count]
        filters = [torch.zeros_like(weight) for weight in weights]
        changes = [torch.empty_like(x) for x, want in zip(inputs, wanted, strict=False) if want]
        start = 0
        for part in block.parts(*inputs, upstream[0]):
            found = block.other_gradients(part, weights, through, wanted)
            for whole, piece in zip(changes, found, strict=False):
                whole[start : start + len(piece)] = piece
            torch._foreach_add_(filters, found[-count:])
            start += len(part[0])
        given = iter(changes)
        of_inputs = [next(given) if want else None for want in wanted[:count]]
        of_layers = zip(filters, affine[::2], affine[1::2], strict=True)
        return None, *of_inputs, *(gradient for layer in of_layers for gradient in layer)


def _total(norm: BatchNorm, values: Tensor) -> Tensor:
    """The sum over the processes whose images make the norm's statistics."""
    return values if norm.total is None else norm.total(values)


def _moments(values: Tensor) -> tuple[Tensor, Tensor]:
    # as rows: torch.var_mean takes ten times as long on a CPU
    rows = values.permute(0, 2, 3, 1).reshape(-1, values.shape[1])
    mean = rows.mean(0, dtype=torch.promote_types(rows.dtype, torch.float32))
    return mean, (rows - mean).square_().mean(0)


def _normed(values: Tensor, norm: Norm) -> Tensor:
    weight, bias, mean, variance, eps, _ = norm
    return F.batch_norm(values, mean, variance, weight, bias, eps=eps)
