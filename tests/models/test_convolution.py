"""Convolutions whose gradients are made otherwise, against autograd's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from derts.kernels.convolution import Branches, Convolution


@pytest.mark.parametrize(
    ("channels", "filters", "rows", "columns"),
    [(64, 64, 5, 6), (64, 64, 6, 5), (64, 128, 4, 4), (8, 16, 7, 3)],
    ids=["pairs of columns", "odd", "more filters", "few"],
)
def test_gradients_are_those_of_autograd(
    channels: int, filters: int, rows: int, columns: int
) -> None:
    random = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    values = draw(2, channels, rows, columns).to(memory_format=torch.channels_last)
    main, shortcut = draw(filters, channels, 3, 3), draw(filters, channels, 1, 1)
    inputs = [tensor.requires_grad_() for tensor in (values, main, shortcut)]
    from_main, from_shortcut = draw(2, filters, rows, columns), draw(2, filters, rows, columns)

    def gradients(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad((one * from_main).sum() + (other * from_shortcut).sum(), inputs)

    expected = gradients(F.conv2d(values, main, padding=1), F.conv2d(values, shortcut))
    both = gradients(*Branches.apply(values, main, shortcut))  # type: ignore[no-untyped-call]
    alone = Convolution.apply(values, main)  # type: ignore[no-untyped-call]
    apart = gradients(alone, F.conv2d(values, shortcut))
    for wanted, *found in zip(expected, both, apart, strict=True):
        for value in found:
            torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(Convolution.apply(values, main), F.conv2d(values, main, padding=1))  # type: ignore[no-untyped-call]
