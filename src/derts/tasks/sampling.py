"""Draw few-shot tasks from an ImageTable, all tasks at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from derts.data.table import ImageTable
from derts.errors import DertsError
from derts.tasks.noise import Noise
from derts.tasks.pool import TaskPool
from derts.tasks.randomness import generator

CHUNK = 1 << 23  # random numbers drawn at once: bounds memory, never the result's quality


class TaskSampler:
    """Draws pools from one table; what depends only on the table is worked out once."""

    def __init__(self, images: ImageTable, classes: Sequence[str] | None = None) -> None:
        self.split = images.split
        self.class_names = images.class_names if classes is None else tuple(classes)
        self.classes = None if classes is None else list(classes)
        groups = images.class_indices(classes)
        self.numbers = images.class_numbers(classes)
        self.sizes = torch.tensor([len(group) for group in groups], dtype=torch.long)
        self.indices = pad_sequence(groups, batch_first=True)  # [classes, most images]

    def draw(
        self,
        *,
        tasks: int,
        way: int,
        shot: int,
        query: int,
        seed: int | Sequence[int | str],
        noise: Noise | None = None,
        images: int = 0,
    ) -> TaskPool:
        """`tasks` tasks of way × (shot + query) different images; see TaskPool.sample.

        With `images`, all tasks together use about that many different ones, drawn evenly from
        all classes: any one task is as likely as without, but a pool costs less to embed.
        """
        self._check(tasks, way, shot, query)
        random = generator(seed)
        classes = _choose(torch.ones(len(self.sizes)), tasks, way, random)
        indices, sizes = self.indices, self.sizes
        each = max(shot + query, images // len(sizes))
        if images and each < indices.shape[1]:
            allowed = torch.arange(indices.shape[1])[None] < sizes[:, None]
            some = _choose(allowed, len(sizes), each, random)
            indices, sizes = indices.gather(1, some), sizes.clamp(max=each)
        slots = _choose_images(indices, sizes, classes, shot + query, random)
        true_labels = torch.arange(way)[None, :, None].expand_as(slots).contiguous()
        labels = true_labels
        if noise is not None:
            slots, labels, true_labels = noise.apply(slots, true_labels, random)

        def support(values: torch.Tensor) -> torch.Tensor:
            return values[:, :, :shot].reshape(tasks, -1)

        def rest(values: torch.Tensor) -> torch.Tensor:
            return values[:, :, shot:].reshape(tasks, -1)

        return TaskPool(
            support=support(slots),
            support_labels=support(labels),
            query=rest(slots),
            query_labels=rest(labels),
            true_support_labels=support(true_labels),
            true_query_labels=rest(true_labels),
            way=way,
            classes=self.numbers[classes],
            recipe={
                "split": self.split,
                "tasks": tasks,
                "way": way,
                "shot": shot,
                "query": query,
                "seed": str(seed),
                "classes": self.classes,
                "noise": None if noise is None else repr(noise),
                **({"images": images} if images else {}),
            },
        )

    def _check(self, tasks: int, way: int, shot: int, query: int) -> None:
        if min(tasks, way, shot, query) < 1:
            raise DertsError(
                f"tasks {tasks}, way {way}, shot {shot}, query {query}: each must be at least 1"
            )
        if way > len(self.sizes):
            raise DertsError(
                f"way {way} needs {way} classes but {self.split!r} offers {len(self.sizes)}: "
                f"lower --tasks.way to {len(self.sizes)} or add classes"
            )
        smallest = int(self.sizes.argmin())
        if int(self.sizes[smallest]) < shot + query:
            raise DertsError(
                f"class {self.class_names[smallest]!r} of {self.split!r} has "
                f"{int(self.sizes[smallest])} images but shot {shot} + query {query} needs "
                f"{shot + query}: add images, leave the class out (derts data prepare "
                f"--min-images {shot + query}), or lower shot or query"
            )


def _choose_images(
    indices: torch.Tensor,
    sizes: torch.Tensor,
    classes: torch.Tensor,
    count: int,
    random: torch.Generator,
) -> torch.Tensor:
    """int64 [tasks, way, count]: different images of each task's classes.

    indices: [classes, most images], of which the first `sizes` [classes] of each row count.
    """
    flat, most = classes.reshape(-1), indices.shape[1]
    if bool((sizes == most).all()):
        positions = _choose(torch.ones(most), len(flat), count, random)
    else:
        allowed = torch.arange(most)[None] < sizes[:, None]
        parts = flat.split(max(1, CHUNK // most))
        positions = torch.cat([_choose(allowed[part], len(part), count, random) for part in parts])
    return indices[flat[:, None], positions].reshape(*classes.shape, count)


def _choose(allowed: torch.Tensor, rows: int, count: int, random: torch.Generator) -> torch.Tensor:
    """int64 [rows, count]: per row, `count` different positions where `allowed` is not zero.

    allowed: [options] for all rows alike, or [rows, options].
    """
    chunk = max(1, CHUNK // allowed.shape[-1])
    parts = []
    for start in range(0, rows, chunk):
        stop = min(rows, start + chunk)
        keys = torch.rand(stop - start, allowed.shape[-1], generator=random)
        keys.masked_fill_((allowed if allowed.ndim == 1 else allowed[start:stop]) == 0, -1.0)
        parts.append(keys.topk(count, dim=1).indices)
    return torch.cat(parts)
