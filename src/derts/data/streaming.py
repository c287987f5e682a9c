"""Items on the device that computes, or streamed to it: the next batch while one is used."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache

import torch

from derts.config import HardwareConfig
from derts.data.opening import open_data
from derts.data.table import Table
from derts.hardware import choose_device

AHEAD = 2  # batches under way at once
Fetched = tuple[torch.Tensor, torch.cuda.Stream | None]
"""Items on a device, and the stream that brings them there."""


def image_memory(device: torch.device) -> float:
    """Bytes of a device that images may take: half of what is free on a GPU, no limit elsewhere."""
    return torch.cuda.mem_get_info(device)[0] / 2 if device.type == "cuda" else math.inf


def place_table(images: Table, device: torch.device, memory_gib: float | None = None) -> Table:
    """Images on a GPU where they fit into its `image_memory`, or half of a limit; else streamed."""
    if images.device.type == "cuda":
        return images
    most = image_memory(device)
    if memory_gib is not None and device.type == "cuda":
        most = min(most, memory_gib * 2**29)
    if images.items.nbytes < most:
        return images.to(device) if device.type == "cuda" else images
    return StreamedTable.of(images, device)


@lru_cache(maxsize=2)
def placed_tables(data: str, hardware: HardwareConfig) -> Mapping[str, Table]:
    """Data for several runs of one process: opened once, and on a GPU it stays there."""
    device, limit = choose_device(hardware.device), hardware.memory_gib
    return {split: place_table(table, device, limit) for split, table in open_data(data).items()}


@dataclass(frozen=True, eq=False, repr=False)
class StreamedTable(Table):
    """A table whose `gather` gives items on `target`, wherever they are held.

    For a GPU they pass through pinned memory, on a stream of their own. What `prefetch` was told
    to expect is fetched while the model computes; anything else is fetched when asked for.
    """

    target: torch.device = field(default_factory=lambda: torch.device("cpu"))
    _expected: list[tuple[torch.Tensor, Future[Fetched]]] = field(default_factory=list)
    _fetcher: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "derts"))

    @staticmethod
    def of(table: Table, target: torch.device) -> StreamedTable:
        """The same items, streamed to a device."""
        return StreamedTable(
            table.items, table.labels, table.class_names, table.split, table.categories,
            target=torch.empty(0, device=target).device,  # cuda is cuda:0
        )  # fmt: skip

    @property
    def gathers_to(self) -> torch.device:
        return self.target

    def prefetch(self, indices: torch.Tensor) -> None:
        self._expected.append((indices, self._fetcher.submit(self._fetch, indices)))
        if len(self._expected) > AHEAD:  # whoever asked for it has changed their mind
            del self._expected[0]

    def gather(self, indices: torch.Tensor) -> torch.Tensor:
        for place, (expected, future) in enumerate(self._expected):
            is_near = (expected.shape, expected.device) == (indices.shape, indices.device)
            if is_near and torch.equal(expected, indices):
                del self._expected[place]
                items, stream = future.result()
                break
        else:
            items, stream = self._fetch(indices)
        if stream is not None:
            using = torch.cuda.current_stream(self.target)
            using.wait_stream(stream)
            items.record_stream(using)
        return items

    def _fetch(self, indices: torch.Tensor) -> Fetched:
        shape = (*indices.shape, *self.item_shape)
        on_gpu = self.target.type == "cuda"
        held = torch.empty(shape, dtype=self.items.dtype, pin_memory=on_gpu)
        rows = held.view(-1, *self.item_shape)
        torch.index_select(self.items, 0, indices.reshape(-1).cpu(), out=rows)
        if not on_gpu:
            return held.to(self.target), None
        stream = torch.cuda.Stream(self.target)
        with torch.cuda.stream(stream):
            return held.to(self.target, non_blocking=True), stream
