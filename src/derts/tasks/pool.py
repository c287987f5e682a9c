"""TaskPool: many few-shot tasks as indices and labels, no images."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from derts.errors import DertsError
from derts.files import parse_json, write_atomically
from derts.hardware import send

if TYPE_CHECKING:
    from derts.data import Table
    from derts.tasks.noise import Noise
    from derts.tasks.randomness import Seed

Recipe = dict[str, Any]


@dataclass(frozen=True, eq=False)
class TaskPool:
    """N tasks. S = way × shot support images, Q = way × query query images per task.

    >>> import torch
    >>> from derts.data import ImageTable
    >>> table = ImageTable(torch.zeros(40, 4, 4, 1, dtype=torch.uint8),
    ...                    torch.arange(40) // 10, ("a", "b", "c", "d"))
    >>> pool = TaskPool.sample(table, tasks=6, way=3, shot=1, query=2, seed=0)
    >>> len(pool), pool.support.shape, pool[:2].query.shape
    (6, torch.Size([6, 3]), torch.Size([2, 6]))
    >>> pool[:2]
    TaskPool(2 tasks: 3 way, 3 support and 6 query images each; 2 of 6 tasks)
    """

    support: Tensor  # int64 [N, S]: indices into a Table
    support_labels: Tensor  # int64 [N, S]: 0 … way − 1, as the learner sees them
    query: Tensor  # int64 [N, Q], and so are the labels of the query
    query_labels: Tensor
    true_support_labels: Tensor  # before noise: for diagnosis, never for a strategy
    true_query_labels: Tensor
    way: int  # classes per task
    recipe: Recipe = field(default_factory=dict)  # how it was made, and "changes" since
    classes: Tensor | None = None  # int64 [N, way]: of the table, that labels stand for
    augmentation: Tensor | None = None  # int64 [N, S + Q, 3], of derts.tasks.augment
    trust: Tensor | None = None  # float32 [N, S + Q]: that a label is right (None: all are)

    @staticmethod
    def sample(
        table: Table, *, tasks: int, way: int = 5, shot: int = 5, query: int = 15, seed: Seed = 0,
        classes: Sequence[str] | None = None, noise: Noise | None = None, pool_images: int = 0,
    ) -> TaskPool:  # fmt: skip
        """Draw a pool: classes without replacement within a task, images likewise.

        With `pool_images`, all tasks together use about that many different ones.
        """
        from derts.tasks.sampling import TaskSampler

        return TaskSampler(table, classes).draw(
            tasks=tasks,
            way=way,
            shot=shot,
            query=query,
            seed=seed,
            noise=noise,
            pool_images=pool_images,
        )

    def __len__(self) -> int:
        return len(self.support)

    def __getitem__(self, which: slice | Tensor | Sequence[int]) -> TaskPool:
        """The tasks at a slice, at integer indices or where a mask is true, as a pool."""
        if isinstance(which, slice) and which.indices(len(self)) == (0, len(self), 1):
            return self
        key = which if isinstance(which, slice) else torch.atleast_1d(torch.as_tensor(which))
        some = self._mapped(lambda tensor: tensor[key])
        return replace(some, recipe=self._noted(f"{len(some)} of {len(self)} tasks", len(some)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskPool):
            return NotImplemented
        mine, theirs = self.tensors(), other.tensors()
        return (self.way, mine.keys()) == (other.way, theirs.keys()) and all(
            torch.equal(tensor, theirs[name]) for name, tensor in mine.items()
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        support, query = self.support.shape[1], self.query.shape[1]
        shape = f"{self.way} way, {support} support and {query} query images each"
        return f"TaskPool({'; '.join([f'{len(self)} tasks: {shape}', *self.changes])})"

    @property
    def changes(self) -> list[str]:
        """What was done to the pool since it was drawn, in words: it was sliced, relabelled, …"""
        return list(self.recipe.get("changes", ()))

    def _noted(self, change: str, tasks: int) -> Recipe:
        return {**self.recipe, "tasks": tasks, "changes": [*self.changes, change]}

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        values = vars(self).items()
        return {name: value for name, value in values if isinstance(value, Tensor)}

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> TaskPool:
        changed: dict[str, Any] = {name: change(x) for name, x in self.tensors().items()}
        return replace(self, **changed)

    def relabelled(self, by: str, **tensors: Any) -> TaskPool:
        """The same tasks with other `tensors` by name, and a recipe that says so."""
        return replace(self, **tensors, recipe=self._noted(f"relabelled by {by}", len(self)))

    def split(self, size: int) -> Iterator[TaskPool]:
        """Consecutive pools of `size` tasks, the last one perhaps shorter."""
        return (self[start : start + size] for start in range(0, len(self), size))

    def to(self, device: torch.device | str) -> TaskPool:
        """The same pool with its tensors on a device; a GPU fetches them in the background."""
        return self._mapped(lambda tensor: send(tensor, torch.device(device)))

    def clone(self) -> TaskPool:
        """The same pool in memory of its own."""
        return self._mapped(torch.Tensor.clone)

    def pin_memory(self) -> TaskPool:
        """The same pool in page-locked memory, from which a GPU fetches without waiting."""
        return self._mapped(torch.Tensor.pin_memory)

    def mislabelled(self) -> Tensor:
        """float [N]: share of each task's labels that noise changed. For diagnosis only."""
        given = torch.cat((self.support_labels, self.query_labels), 1)
        true = torch.cat((self.true_support_labels, self.true_query_labels), 1)
        return (given != true).float().mean(1)

    @staticmethod
    def concatenate(pools: Sequence[TaskPool]) -> TaskPool:
        """One pool of the tasks of all; its recipe lists theirs."""
        parts = [pool.tensors() for pool in pools]
        names = [name for name in parts[0] if all(name in part for part in parts)]
        joined = {name: torch.cat([part[name] for part in parts]) for name in names}
        about = {"tasks": sum(map(len, pools)), "changes": [f"{len(pools)} pools concatenated"]}
        recipe = {**about, "pools": [pool.recipe for pool in pools]}
        return TaskPool(**joined, way=pools[0].way, recipe=recipe)

    def _checked(self) -> TaskPool:
        """This pool, or a ValueError that says what cannot be."""
        for name, tensor in self.tensors().items():
            images = self.support if "support" in name else self.query
            shape = (len(self), self.way) if name == "classes" else (len(self), images.shape[1])
            if tensor.dtype != torch.int64 or tensor.shape != shape:
                raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}")
            most = self.way if "labels" in name else 2**62
            if tensor.numel() and not 0 <= int(tensor.min()) <= int(tensor.max()) < most:
                raise ValueError(f"{name} reaches from {int(tensor.min())} to {int(tensor.max())}")
        return self

    def save(self, path: Path | str) -> None:
        """Write a safetensors file, without augmentation and trust; `load` reads it."""
        about = {"derts": "task-pool", "way": str(self.way), "recipe": json.dumps(self.recipe)}
        kept = replace(self, augmentation=None, trust=None).to("cpu").clone().tensors()
        write_atomically(Path(path), save(kept, metadata=about))

    @staticmethod
    def load(path: Path | str) -> TaskPool:
        """Read a pool that `save` wrote."""
        try:
            with safe_open(str(path), framework="pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            recipe = parse_json(about["recipe"])
            return TaskPool(**tensors, way=int(about["way"]), recipe=recipe)._checked()
        except FileNotFoundError:
            raise DertsError(f"no task pool at {path}: check the path") from None
        except (SafetensorError, LookupError, TypeError, ValueError, OSError) as error:
            cause = f"{path} is not a task pool, or is damaged ({error})"
            raise DertsError(f"{cause}: save it again") from None
