"""Several processes, started by torchrun, that train one learner together.

All hold the whole learner, optimiser and strategy and draw the same tasks; each works on its share.
BatchNorm takes its statistics over the tasks of all, so that their number changes only rounding.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from derts.errors import DertsError

Value = TypeVar("Value")
SPEAKING = 2.0  # seconds
PATIENCE = timedelta(minutes=10)  # a process that lives but is silent for so long is given up


class LostProcessError(DertsError):
    """Another process of the job is gone."""


@dataclass(frozen=True)
class Group:
    """The processes of a job, as one of them sees it; alone by default.

    >>> Group().part(6), Group().gather(torch.ones(6), 6).sum()
    (slice(0, 6, None), tensor(6.))
    """

    rank: int = 0
    size: int = 1
    device: torch.device | None = None  # where this process computes

    @property
    def alone(self) -> bool:
        return self.size == 1

    @property
    def leads(self) -> bool:
        """Whether this process writes the run's files."""
        return self.rank == 0

    def shares(self, count: int) -> bool:
        """Whether `count` tasks are shared out, rather than worked on by every process."""
        return count >= 2 * self.size

    def part(self, count: int) -> slice:
        """This process's share of `count` tasks; all of them where shares would be too small."""
        if not self.shares(count):
            return slice(0, count)
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def share(self, count: int) -> float:
        """By what to multiply a mean over `part` so that all processes' add up to the mean."""
        part = self.part(count)
        return (part.stop - part.start) / count if self.shares(count) else 1 / self.size

    def gather(self, mine: Tensor, count: int) -> Tensor:
        """Rows [n, …] of this process's part -> rows [count, …] of all, the same everywhere."""
        if self.alone:
            return mine
        if not self.shares(count):
            return self.same(mine.detach().cpu()).to(mine.device)
        rows = mine.new_zeros(count, *mine.shape[1:])
        rows[self.part(count)] = mine.detach()
        return self._sum(rows)

    def collect(self, mine: Tensor) -> Tensor:
        """Rows [n, …], as many of every process -> all of them [n × size, …], in rank order."""
        everyone = mine.new_zeros(self.size, *mine.shape)
        everyone[self.rank] = mine.detach()
        return self._sum(everyone).flatten(0, 1)

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes; gradients flow to each of them."""
        if self.alone:
            return values
        found: Tensor = _Total.apply(values, self)  # type: ignore[no-untyped-call]
        return found

    def sum_tensors(self, tensors: list[Tensor]) -> None:
        """Replace tensors of one type by their sums over all processes, in one message."""
        if self.alone or not tensors:
            return
        joined = self._sum(torch.cat([value.flatten() for value in tensors]))
        for value, part in zip(tensors, joined.split([x.numel() for x in tensors]), strict=True):
            value.copy_(part.view_as(value))

    def any(self, here: bool) -> bool:
        return bool(self._sum(torch.tensor([float(here)])).item())

    def same(self, value: Value) -> Value:
        """The leading process's value, tensors and plain values, in all of them."""
        if self.alone:
            return value
        found = [value]
        with self._contact():
            dist.broadcast_object_list(found, src=0, device=self.device)
        return found[0]

    def first(self, action: Callable[[], object]) -> None:
        """Let the leading process act; where it fails, the others end too."""
        try:
            if self.leads:
                action()
        except BaseException:
            self.same(False)
            raise
        if not self.same(True):
            self.let_leader_speak()
            raise LostProcessError("process 0 failed: its message says why")

    def let_leader_speak(self) -> None:
        """Wait a moment before ending: torchrun ends all as soon as one has, message or not."""
        if not self.leads:
            time.sleep(SPEAKING)

    def _sum(self, values: Tensor) -> Tensor:
        if self.alone:
            return values
        wire = values.detach().to(self.device or values.device, copy=True).contiguous()
        with self._contact():
            dist.all_reduce(wire)
        return wire.to(values.device)

    @contextmanager
    def _contact(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            cause = f"which was killed or failed ({str(error).splitlines()[0][:200]})"
            who = f"process {self.rank} of {self.size}"
            raise LostProcessError(f"{who} lost contact with another one, {cause}") from None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return group._sum(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # every process's loss depends on the sum, so every one's gradient counts
        return ctx.group._sum(gradients[0]), None


@contextmanager
def joined(device: torch.device) -> Iterator[Group]:
    """The group that torchrun started this process in, or a group of one.

    On GPUs each process takes the one of its local rank and talks through nccl, else gloo.
    """
    told = ("WORLD_SIZE", "RANK", "LOCAL_RANK")  # by torchrun
    size, rank, local = (int(os.environ.get(name, "0")) for name in told)
    if size <= 1:
        yield Group(device=device)
        return
    if dist.is_initialized():  # by the program that calls us
        yield Group(dist.get_rank(), dist.get_world_size(), device)
        return
    if str(device) == "cuda":
        if local >= (gpus := torch.cuda.device_count()):
            fix = "lower torchrun --nproc-per-node, or pass --hardware.device cpu"
            raise DertsError(f"{local + 1} processes on a machine with {gpus} GPUs: {fix}")
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    try:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        cause = f"cannot join the others ({str(error).splitlines()[0]})"
        raise DertsError(f"process {rank} of {size} {cause}: start all with torchrun") from None
    yield Group(rank, size, device)
    # not after an error: whoever is gone would be waited for; and only when nobody has anything
    # under way, or closing the connection would abort the other's process
    dist.barrier()
    dist.destroy_process_group()
