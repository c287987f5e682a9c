"""Draw few-shot tasks from a Table, all tasks at once, by numpy on one thread."""

from collections.abc import Sequence

import numpy as np
import torch

from derts.data.table import Table
from derts.errors import DertsError
from derts.tasks.noise import Integers, Noise, Random
from derts.tasks.pool import TaskPool
from derts.tasks.randomness import Seed, numpy_generator

AT_ONCE = 1 << 16  # numbers drawn together: they stay in the cache of a core


class TaskSampler:
    """Draws pools from one table, by its labels or others [n], −1 where an item is left out."""

    def __init__(
        self,
        images: Table,
        classes: Sequence[str] | None = None,
        labels: torch.Tensor | None = None,
    ) -> None:
        self.split = images.split
        numbers, groups = images.class_numbers(classes), images.class_indices(classes, labels)
        used = [place for place, group in enumerate(groups) if labels is None or len(group)]
        self.numbers: Integers = numbers[used].numpy()
        self.groups: list[Integers] = [groups[place].numpy() for place in used]
        self.class_names = tuple(images.class_names[number] for number in self.numbers)
        self.classes = None if classes is None else list(classes)
        self.sizes = np.array([len(group) for group in self.groups], np.int64)
        self.indices = np.concatenate(self.groups)

    def draw(
        self, *, tasks: int, way: int, shot: int, query: int, seed: Seed,
        noise: Noise | None = None, pool_images: int = 0,
    ) -> TaskPool:  # fmt: skip
        """`tasks` tasks of way × (shot + query) different images; see TaskPool.sample.

        With `pool_images`, all tasks together use about that many different ones, drawn evenly from
        all classes: any one task is as likely as without, but a pool costs less to embed.
        """
        self._check(tasks, way, shot, query)
        random, count = numpy_generator(seed), shot + query
        indices, sizes = self.indices, self.sizes
        each = max(count, pool_images // len(sizes))
        if 0 < pool_images < len(indices) and each < sizes.max():
            indices, sizes = self._fewer_images(each, random)
        classes = draw_distinct(np.full(tasks, len(sizes)), way, random)
        flat = classes.ravel()
        positions = draw_distinct(sizes[flat], count, random)
        positions += (sizes.cumsum() - sizes)[flat][:, None]
        slots = np.take(indices, positions).reshape(tasks, way, count)
        true = labels = np.broadcast_to(np.arange(way)[:, None], slots.shape)
        if noise is not None:
            slots, labels, true = noise.apply(slots, labels, random)

        def parted(values: Integers) -> list[torch.Tensor]:
            """The first `shot` of each class, and the others, [tasks, ...] each."""
            parts = values[:, :, :shot], values[:, :, shot:]
            return [torch.from_numpy(np.array(x, order="C").reshape(tasks, -1)) for x in parts]

        given = parted(labels)
        asked = {"tasks": tasks, "way": way, "shot": shot, "query": query, "seed": str(seed)}
        named = {"classes": self.classes, "noise": None if noise is None else repr(noise)}
        recipe = {"split": self.split, **asked, **named}
        if pool_images:
            recipe["images"] = pool_images
        support, query_images = parted(slots)
        true_support, true_query = given if true is labels else parted(true)
        return TaskPool(
            support, given[0], query_images, given[1], true_support, true_query, way, recipe,
            classes=torch.from_numpy(self.numbers[classes]),
        )  # fmt: skip

    def _fewer_images(self, each: int, random: Random) -> tuple[Integers, Integers]:
        """Indices and sizes of classes of which at most `each` images are left, drawn uniformly."""
        large = np.flatnonzero(self.sizes > each)
        groups = list(self.groups)
        drawn = draw_distinct(self.sizes[large], each, random)
        for number, places in zip(large, drawn, strict=True):
            groups[number] = self.groups[number][places]
        return np.concatenate(groups), np.minimum(self.sizes, each)

    def _check(self, tasks: int, way: int, shot: int, query: int) -> None:
        wanted, classes, smallest = shot + query, len(self.sizes), int(self.sizes.argmin())
        if min(tasks, way, shot, query) < 1:
            asked = f"tasks {tasks}, way {way}, shot {shot}, query {query}"
            raise DertsError(f"{asked}: each must be at least 1")
        if way > classes:
            fix = f"lower --tasks.way to {classes} or add classes"
            if classes < 2:
                fix = "add classes, or split them otherwise (derts data prepare --split-fractions)"
            offers = f"{self.split!r} offers {classes}"
            raise DertsError(f"way {way} needs {way} classes but {offers}: {fix}")
        if self.sizes[smallest] < wanted:
            which = f"class {self.class_names[smallest]!r} of {self.split!r}"
            few = f"{self.sizes[smallest]} images but shot {shot} + query {query} needs {wanted}"
            can = self.sizes[smallest] > 1
            fix = "lower --tasks.shot or --tasks.query" if can else "add images"
            if (self.sizes >= wanted).sum() >= way:
                fix += f", or leave it out (--min-images {wanted})"
            raise DertsError(f"{which} has {few}: {fix}")


def draw_distinct(sizes: Integers, count: int, random: Random) -> Integers:
    """int64 [rows, count]: per row, different numbers from 0 to its size [rows] − 1, any order."""
    few = sizes < 2 * count  # so few to choose from that most draws would be duplicates
    found = np.empty((len(sizes), count), np.int64)
    for method, rows in ((_by_redrawing, np.flatnonzero(~few)), (_by_sorting, np.flatnonzero(few))):
        step = max(1, AT_ONCE // count)
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            found[part] = method(sizes[part], count, random)
    return found


def _by_redrawing(sizes: Integers, count: int, random: Random) -> Integers:
    """Draw with replacement, then draw duplicates again until there are none.

    Which ones are drawn again depends only on which are equal, never on their values.
    """
    bits = (count - 1).bit_length()
    found = (random.random((len(sizes), count)) * sizes[:, None]).astype(np.int64)
    rows, part = np.arange(len(sizes)), found
    while True:
        order = part << bits | np.arange(count)  # by value, with the column that it stands in
        order.sort(axis=1)
        row, place = np.nonzero((order[:, 1:] ^ order[:, :-1]) < 1 << bits)
        if not len(row):
            return found
        column, row = order[row, place + 1] & (1 << bits) - 1, rows[row]
        found[row, column] = (random.random(len(row)) * sizes[row]).astype(np.int64)
        rows = np.unique(row)
        part = found[rows]


def _by_sorting(sizes: Integers, count: int, random: Random) -> Integers:
    """The first `count` places of a random order of each row's numbers."""
    keys = random.random((len(sizes), int(sizes.max())))
    keys[np.arange(keys.shape[1]) >= sizes[:, None]] = 2.0
    return keys.argsort(axis=1)[:, :count]
