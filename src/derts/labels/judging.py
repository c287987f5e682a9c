"""Judging a data set's labels: its items are embedded, unless they are features, then trusted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from derts.data.store import item_names
from derts.data.table import Table
from derts.errors import DertsError
from derts.labels.prototypes import label_trust
from derts.labels.trust import Trust
from derts.learners.base import Learner
from derts.learners.pool_features import embed_images, evaluation_mode
from derts.models.batch_norm import set_context
from derts.progress import Advance, unheard
from derts.tasks.randomness import generator

AT_ONCE = 3200  # items from one line of progress to the next …
MAML_AT_ONCE = 256  # … which MAML normalises together
ON_DEVICE = 4 * 2**30  # bytes of features that are judged where the learner is


@dataclass(frozen=True, eq=False)
class JudgedItems:
    """The n items of some splits in one list, split after split.

    A class that two splits have by the same name is one class.

    tables    the splits
    paths     n names: the files that they were, else split/class/number
    features  float32 [n, dim]
    trust     in the n labels, which number trust.classes
    device    where trust is computed
    """

    tables: Mapping[str, Table]
    paths: Sequence[str]
    features: Tensor
    trust: Trust
    device: torch.device

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def places(self) -> list[tuple[str, int]]:
        """n times the split and the number in it."""
        return [(name, place) for name, table in self.tables.items() for place in range(len(table))]

    @property
    def noun(self) -> str:
        """What an item is called."""
        return next((table.noun for table in self.tables.values()), "image")

    def items(self, numbers: Sequence[int]) -> list[Tensor]:
        """Each of these items, on the CPU: uint8 [height, width, channels], or features [d]."""
        places = [self.places[number] for number in numbers]
        return [self.tables[name].gather(torch.tensor([n]))[0].cpu() for name, n in places]

    def typical(self, class_number: int, most: int) -> list[int]:
        """The images of a class whose labels are trusted most."""
        members = (self.trust.given == class_number).nonzero().squeeze(1)
        order = self.trust.probability[members].argsort(descending=True, stable=True)
        return [int(number) for number in members[order[:most]]]

    def class_rows(self) -> list[tuple[str, str, int, float]]:
        """Class, other class that it is confused with most, images, share that looks wrong.

        The class with the largest share comes first.
        """
        trust = self.trust
        found = []
        for number, name in enumerate(trust.classes):
            column = trust.wrong[:, number].clone()
            column[number] = -1
            members = trust.given == number
            share = 1 - float(trust.probability[members].mean()) if bool(members.any()) else 0.0
            found.append((name, trust.classes[int(column.argmax())], int(members.sum()), share))
        return sorted(found, key=lambda row: -row[3])


def judge_items(
    learner: Learner[Any] | None,
    tables: Mapping[str, Table],
    data: str | None = None,
    advance: Advance = unheard,
    paths: Sequence[str] | None = None,
) -> JudgedItems:
    """Embed every item once, and judge all labels of all classes of all splits together.

    learner  None: the items are features and are judged as they are
    data     the store that the tables are of, which knows the names of items
    paths    those names, where they are known already
    """
    names = tuple(dict.fromkeys(name for table in tables.values() for name in table.class_names))
    numbers = {name: number for number, name in enumerate(names)}
    labels, features, found = [], [], []
    for split, table in tables.items():
        of_class = torch.tensor([numbers[name] for name in table.class_names], dtype=torch.long)
        labels.append(of_class[table.labels])
        found += item_paths(table, split, data)
        features.append(item_features(learner, table, advance).cpu() if learner else table.items)
    rows = directions(torch.cat(features)) if learner else torch.cat(features)
    device = learner.device if learner else rows.device
    trust = judge(rows, torch.cat(labels), names, device)
    return JudgedItems(tables, paths or found, rows, trust, device)


def directions(rows: Tensor) -> Tensor:
    """Features [n, d] of a learner, centred and of length one: they rank wrong labels better so."""
    return normalize(rows - rows.mean(0))


def judge(rows: Tensor, labels: Tensor, names: Sequence[str], device: torch.device) -> Trust:
    """Trust in labels, computed on a device that can hold the features."""
    near = rows.to(device) if rows.nbytes <= ON_DEVICE else rows
    return label_trust(near, labels, classes=names)


def item_paths(table: Table, split: str, data: str | None) -> list[str]:
    """The names of a split's items (the files that images were), else split/class/number."""
    found = None if data is None else item_names(data, split)
    if found is not None and len(set(found)) == len(found) == len(table):
        return found
    of_class = table.class_names
    return [f"{split}/{of_class[k]}/{place}" for place, k in enumerate(table.labels.tolist())]


def chosen_splits(tables: Mapping[str, Table], split: str | None) -> Mapping[str, Table]:
    """All splits, or the one that is named."""
    if split is None:
        return tables
    if split not in tables:
        raise DertsError(f"the data has no split {split!r}, only {', '.join(tables)}: name one")
    return {split: tables[split]}


def item_features(
    learner: Learner[Any], images: Table, advance: Advance = unheard, indices: Tensor | None = None
) -> Tensor:
    """Features float32 [n, dim] of the items of a table, or of those at indices.

    On the learner's device where they take at most ON_DEVICE bytes, else on the CPU.
    """
    indices = torch.arange(len(images)) if indices is None else indices
    order = torch.arange(len(indices))
    if (
        not learner.embeds
    ):  # it normalises a batch by itself, and one in order would be of one class
        order = torch.randperm(len(indices), generator=generator((0, "inspection")))
    found = torch.zeros(0)
    with evaluation_mode(learner):
        for part in order.split(AT_ONCE if learner.embeds else MAML_AT_ONCE):
            if learner.embeds:
                features = embed_images(learner, images, indices[part])
            else:
                set_context(learner.backbone, len(part))
                pixels = images.gather(indices[part]).to(learner.device)
                items = learner.features(pixels[None])[0]
                features = learner.embedding.run(learner.backbone, items, learner.dtype)
            if not len(found):
                size = len(order), features.shape[1]
                fits = 4 * size[0] * size[1] <= ON_DEVICE
                found = torch.empty(size, device=learner.device if fits else "cpu")
            found[part.to(found.device)] = features.to(found)
            advance(len(part))
    return found
