"""All that makes a learner fast: precision, kernels, patch sums, captured updates."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from derts.data.table import Table
from derts.hardware import fast_math, send
from derts.kernels import usable_on
from derts.kernels.fused_networks import can_fuse, fused
from derts.kernels.patch_sums import PatchSums, kernels_read
from derts.models import CNN4, ResNet12
from derts.models.embedding import Embedding

MEMORY_FOR_TWO = 100 << 30
MOST_IMAGES = 256  # of a task, for the kernel of inner products


class FastEmbedding(Embedding):
    """A backbone on a device: by kernels in bfloat16 on an NVIDIA GPU, else plain."""

    def __init__(
        self, backbone: nn.Module, device: torch.device, precision: torch.dtype = torch.float32
    ) -> None:
        super().__init__(backbone)
        self.device = device
        self.precision = precision
        self.kernels = precision == torch.bfloat16 and usable_on(device)
        self._patch_sums: PatchSums | None = None

    def __call__(
        self, images: Tensor, dtype: torch.dtype, patch_products: Tensor | None = None
    ) -> Tensor:
        flat = images.flatten(0, 1)
        if self.kernels and can_fuse(self.backbone, images.shape[2:]):
            found = fused(self.backbone, flat, _operations(), patch_products)
        else:
            found = self.run(self.backbone, flat, dtype)
        return found.to(dtype).reshape(*images.shape[:2], -1)

    def patch_products_of(self, table: Table, indices: Tensor) -> Tensor | None:
        """Those of images at indices [...], if `prepare_patch_products` made their table's."""
        if self._patch_sums is None or self._patch_sums.table is not table:
            return None
        return self._patch_sums.of(send(indices, self.device))

    def patch_products_pay(self, table: Table) -> bool:
        """Whether updates on these images are faster where their patch products are known."""
        shape = table.item_shape
        return self.kernels and can_fuse(self.backbone, shape) and kernels_read(shape)

    def prepare_patch_products(self, table: Table) -> None:
        if self.patch_products_pay(table) and PatchSums.worthwhile(table):
            self._patch_sums = PatchSums(table, _operations())

    def inner_products(
        self, features: Tensor, rows: Tensor, support: int, tasks_at_once: int
    ) -> Tensor:
        if not self.kernels or rows.shape[1] > MOST_IMAGES:
            return super().inner_products(features, rows, support, tasks_at_once)
        from derts.kernels.inner_products import inner_products

        return inner_products(features, rows, support)

    def captures(self, table: Table) -> bool:
        """Whether to capture updates as CUDA graphs: these images are, or come, to the GPU.

        A ResNet-12 needs memory for a captured update beside one that is not. Either may take
        40 GB for 3,200 images of 84×84.
        """
        if not self.kernels or table.gathers_to != self.device:
            return False
        known = can_fuse(self.backbone, table.item_shape)
        if known and isinstance(self.backbone, ResNet12):
            total: int = torch.cuda.get_device_properties(self.device).total_memory
            return total >= MEMORY_FOR_TWO
        return known

    def fast_math(self) -> AbstractContextManager[None]:
        # trying out algorithms pays for batches of one size; pools and candidates come in any
        by_kernels = self.kernels and isinstance(self.backbone, CNN4 | ResNet12)
        return fast_math(self.device, tune=not by_kernels)


def _operations() -> Any:
    from derts.kernels.functions import KernelOperations  # needs Triton

    return KernelOperations()
