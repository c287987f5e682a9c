"""How images go through a backbone: the plain way, which every faster one stands in for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from derts.data.table import Table

if TYPE_CHECKING:
    from derts.models.pretrained import Pretrained

PIXEL_MEAN, PIXEL_SCALE = 116.0, 64.0
"""One fixed shift and scale for all data sets: nothing to store with a model or to get wrong."""


def normalised(images: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 [n, height, width, channels] -> float [n, channels, height, width], channels last.

    >>> normalised(torch.tensor([[[[116, 180]]]], dtype=torch.uint8), torch.float32).flatten()
    tensor([0., 1.])
    """
    return (images.permute(0, 3, 1, 2).to(dtype) - PIXEL_MEAN) / PIXEL_SCALE


class Embedding:
    """uint8 images -> features, by torch's own operations in the precision of the parameters.

    A learner owns one and asks nothing else about speed: `derts.kernels.fast_embedding` has the
    one that trainers put in its place. `preprocess` stands in for `normalised` where a backbone
    wants other inputs. A frozen `pretrained` backbone comes first where the data is images.
    """

    precision: torch.dtype = torch.float32
    pretrained: Pretrained | None = None

    def __init__(
        self, backbone: nn.Module, preprocess: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self.backbone = backbone
        self.preprocess = preprocess

    def __call__(
        self, images: Tensor, dtype: torch.dtype, patch_products: Tensor | None = None
    ) -> Tensor:
        """uint8 [T, n, height, width, channels] -> features [T, n, dim] of a dtype.

        `patch_products` is what `patch_products_of` gave for the images.
        """
        found = self.run(self.backbone, images.flatten(0, 1), dtype)
        return found.reshape(*images.shape[:2], -1)

    def by_pretrained(self, items: Tensor) -> Tensor:
        """Items [T, n, ...] as they are, or features of images by the frozen backbone."""
        if self.pretrained is None or items.is_floating_point():
            return items
        return self.pretrained.embed(items)

    def run(
        self, network: Callable[[Tensor], Tensor], images: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """Images [n, height, width, channels] through any network, in the chosen precision."""
        bfloat16 = self.precision == torch.bfloat16
        with torch.autocast(images.device.type, torch.bfloat16, enabled=bfloat16):
            return network(self.inputs(images, self.precision if bfloat16 else dtype)).to(dtype)

    def inputs(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """What a network takes."""
        if self.preprocess:
            return self.preprocess(images)
        # rows of features go in as they are
        return images.to(dtype) if images.is_floating_point() else normalised(images, dtype)

    def task_logits(
        self, feature_scale: float, parameters: dict[str, Tensor], images: Tensor, context: int
    ) -> Tensor | None:
        """MAML's logits of all tasks at once, where there is a faster way than vmap."""

    def patch_products_of(self, table: Table, indices: Tensor) -> Tensor | None:
        """Σ p pᵀ over the patches p of images at indices [...], where they are known: the first
        BatchNorm's statistics follow from it (kernels/patch_sums.py).
        """

    def inner_products(
        self, features: Tensor, rows: Tensor, support: int, tasks_at_once: int
    ) -> Tensor:
        """[T, m, support]: products of each task's features, at rows [T, m] of features [n, dim],
        with those of its first `support` images.
        """
        parts = (features[some] for some in rows.split(tasks_at_once))
        return torch.cat([part @ part[:, :support].transpose(1, 2) for part in parts])

    def captures(self, table: Table) -> bool:
        """Whether to capture updates on these images as CUDA graphs."""
        return False

    def prepare_patch_products(self, table: Table) -> None:
        """Prepare `patch_products_of` for a table that updates draw from, where it pays."""

    def fast_math(self) -> AbstractContextManager[None]:
        """What training and evaluation run within."""
        return nullcontext()
