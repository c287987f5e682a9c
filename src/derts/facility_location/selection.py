"""What a selection is: which rows, how much each counts, and how to train on them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from derts.errors import DertsError
from derts.files import write_atomically

Batch = TypeVar("Batch", covariant=True)


class Indexable(Protocol[Batch]):
    """Anything that a tensor of row numbers indexes: a TaskPool, a tensor, an array."""

    def __getitem__(self, indices: Tensor, /) -> Batch: ...


@dataclass(frozen=True, eq=False)
class Selection:
    """K selected rows out of N, in the order in which they were picked.

    >>> from derts.facility_location.selecting import select
    >>> selection = select(torch.tensor([[0.0], [0.1], [5.0]]), 2)
    >>> selection.indices.tolist(), selection.weights.tolist()
    ([1, 2], [2.0, 1.0])
    """

    indices: Tensor
    """int64 [K], no row twice."""
    weights: Tensor
    """float32 [K]: how many rows each selected row stands for, itself included; their sum is N.
    A row that is equally near to several stands with the lowest index of them."""
    gains: Tensor
    """float64 [K]: by how much each pick lowered the objective. Before the first pick every row
    is taken to be as far away as the largest distance between two rows."""
    objective: float
    """Sum over all rows of the distance to the nearest selected row; lower is better."""
    assignment: Tensor
    """int64 [N]: position in ``indices`` of the selected row that stands for each row."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """How the selection was made."""

    def batches(
        self, pool: Indexable[Batch], meta_batch: int, seed: int = 0
    ) -> Iterator[tuple[Batch, Tensor]]:
        """Yields ``(pool[indices], weights)`` with each selected row once, in a shuffled order.

        Weights are scaled to mean 1 over the whole selection. The last batch may be short.

        >>> from derts.facility_location.selecting import select
        >>> selection = select(torch.tensor([[0.0], [0.1], [5.0]]), 2)
        >>> [(batch.tolist(), weights.tolist()) for batch, weights in
        ...  selection.batches(torch.tensor([10, 11, 12]), 2)]
        [([11, 12], [1.33..., 0.66...])]
        """
        if meta_batch < 1:
            raise DertsError(f"meta_batch is {meta_batch}; it must be at least 1")
        scaled = self.weights / self.weights.mean()
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.indices), generator=generator)
        for some in order.split(meta_batch):
            yield pool[self.indices[some]], scaled[some]

    def to_json(self) -> str:
        """The selection as one JSON object: indices, weights, gains, objective, settings, …"""
        return json.dumps(
            {
                "indices": self.indices.tolist(),
                "weights": self.weights.tolist(),
                "gains": self.gains.tolist(),
                "objective": self.objective,
                "assignment": self.assignment.tolist(),
                "settings": dict(self.settings),
            }
        )

    def save(self, path: str | Path) -> None:
        """Writes :meth:`to_json` to ``path``."""
        write_atomically(Path(path), (self.to_json() + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> Selection:
        """Reads what :meth:`save` wrote."""
        try:
            stored = json.loads(Path(path).read_text(encoding="utf-8"))
            found = cls(
                indices=torch.tensor(stored["indices"], dtype=torch.int64),
                weights=torch.tensor(stored["weights"], dtype=torch.float32),
                gains=torch.tensor(stored["gains"], dtype=torch.float64),
                objective=float(stored["objective"]),
                assignment=torch.tensor(stored["assignment"], dtype=torch.int64),
                settings=dict(stored["settings"]),
            )
            found._check()
            return found
        except OSError as error:
            raise DertsError(f"cannot read selection {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
            raise DertsError(
                f"{path} is not a selection; write one with Selection.save or derts select"
            ) from error

    def _check(self) -> None:
        """ValueError where the parts do not fit each other, as in a file that was changed."""
        count, rows = len(self.indices), len(self.assignment)
        if not self.indices.shape == self.weights.shape == self.gains.shape == (count,):
            raise ValueError("indices, weights and gains differ in length")
        if self.assignment.ndim != 1 or len(self.indices.unique()) != count or not count:
            raise ValueError("a row twice, or none")
        for places, limit in ((self.indices, rows), (self.assignment, count)):
            if not 0 <= int(places.min()) <= int(places.max()) < limit:
                raise ValueError("a row number out of range")
