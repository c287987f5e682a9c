"""A cleaned data set: which labels change, by trust or by what a person decided, and writing it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from derts.data.store import StoreDescription, store_settings
from derts.data.store_writing import SplitContent, write_store
from derts.errors import DertsError
from derts.files import read_csv
from derts.labels.judging import JudgedItems, judge
from derts.labels.trust import Trust

FEWEST = 20  # images that a class keeps, if it has them
CleaningRule: TypeAlias = Literal["mix", "drop", "relabel"]


@dataclass(frozen=True)
class LabelChange:
    """An image (its place in the list of all) that is relabelled, or dropped (None)."""

    image: int
    new_class: str | None
    by: Literal["trust", "review"]


def changes_by_trust(
    judged: JudgedItems,
    rule: CleaningRule = "mix",
    precision: float = 0.95,
    splits: Collection[str] = ("train",),
) -> list[LabelChange]:
    """The changes that a rule makes in these splits, least trusted first.

    relabel  where the suggestion's probability is at least `precision`
    drop     where the label's own is below 0.5
    mix      relabel where that is sure enough, else drop

    A class keeps 20 images, or all where it has fewer: its most trusted ones. No image is
    moved to a class of another split: test images stay what nothing was trained on.
    """
    trust, names = judged.trust, judged.trust.classes
    chosen, known = torch.zeros(2, len(judged), dtype=torch.bool)  # known: the suggestion is there
    start = 0
    for split, table in judged.tables.items():
        part = slice(start, start + len(table))
        own = torch.tensor([name in table.class_names for name in names])
        chosen[part], known[part] = split in splits, own[trust.suggestion[part]]
        start = part.stop
    sure = known & (trust.suggestion != trust.given) & (trust.sure >= precision)
    classes = trust.given.clone()
    if rule != "relabel":
        classes[chosen & (trust.probability < 0.5)] = -1
    if rule != "drop":
        classes = torch.where(chosen & sure, trust.suggestion, classes)
    classes = trust.with_enough(classes, FEWEST)
    changed = (classes != trust.given).nonzero().squeeze(1)
    order = changed[trust.probability[changed].argsort(stable=True)]
    new = [None if number < 0 else names[number] for number in classes[order].tolist()]
    return [LabelChange(*one, "trust") for one in zip(order.tolist(), new, strict=True)]


def read_review(path: Path, judged: JudgedItems) -> dict[int, LabelChange | None]:
    """What a person decided (review.csv), by image; None: the label is right."""
    place_of = {
        (split, name): image
        for image, ((split, _), name) in enumerate(zip(judged.places, judged.paths, strict=True))
    }
    decided: dict[int, LabelChange | None] = {}
    columns = "split", "path", "decision", "new class"
    for row in read_csv(path, *columns):
        split, name, decision, new = (row[column] for column in columns)
        image = place_of.get((split, name))
        if image is None:
            raise DertsError(f"{path} names {name!r} of split {split!r}, which is no image here")
        if decision == "relabel" and new not in judged.trust.classes:
            raise DertsError(f"{path} relabels {name!r} to {new!r}, which is no class here")
        if decision not in ("keep", "relabel", "drop"):
            raise DertsError(f"{path} says {decision!r}: a decision is keep, relabel or drop")
        kept = None if decision == "drop" else new
        decided[image] = None if decision == "keep" else LabelChange(image, kept, "review")
    return decided


def after_review(
    judged: JudgedItems,
    decided: Mapping[int, LabelChange | None],
    rule: CleaningRule,
    precision: float = 0.95,
    splits: Collection[str] = ("train",),
) -> list[LabelChange]:
    """A rule's changes to what a person did not decide, by trust that is computed anew."""
    names = judged.trust.classes
    labels = judged.trust.given.clone()
    kept = torch.ones(len(judged), dtype=torch.bool)
    for image, change in decided.items():
        if change is not None and change.new_class is None:
            kept[image] = False
        elif change is not None:
            labels[image] = names.index(change.new_class or "")
    found = judge(judged.features[kept], labels[kept], names, judged.device)
    # the person's images keep their decision, so they count as certain
    probability, sure, suggestion = torch.ones(len(kept)), torch.ones(len(kept)), labels.clone()
    probability[kept], sure[kept] = found.probability, found.sure
    suggestion[kept] = found.suggestion
    certain = list(decided)
    probability[certain], sure[certain], suggestion[certain] = 1.0, 1.0, labels[certain]
    rests = torch.zeros(len(kept))
    trust = Trust(probability, labels, suggestion, sure, rests, found.wrong, names, found.note)
    return changes_by_trust(replace(judged, trust=trust), rule, precision, splits)


def change_rows(judged: JudgedItems, changes: Sequence[LabelChange]) -> Sequence[Sequence[str]]:
    """The changes as rows of a CSV, with a heading."""
    rows = [("path", "split", "class", "change", "new class", "by", "label is right")]
    for one in changes:
        path, split = judged.paths[one.image], judged.places[one.image][0]
        old = judged.trust.classes[int(judged.trust.given[one.image])]
        what = "drop" if one.new_class is None else "relabel"
        right = f"{float(judged.trust.probability[one.image]):.4f}"
        rows.append((path, split, old, what, one.new_class or "", one.by, right))
    return rows


def write_cleaned(
    judged: JudgedItems,
    changes: Sequence[LabelChange],
    destination: Path,
    origin: str,
    *,
    overwrite: bool = False,
    beside: Mapping[str, bytes] | None = None,
) -> StoreDescription:
    """Write the judged splits with the changes made.

    An image that is relabelled to a class which only another split has moves there.
    """
    tables, names = judged.tables, judged.trust.classes
    new_class = {one.image: one.new_class for one in changes}
    number_of = {
        split: {name: number for number, name in enumerate(table.class_names)}
        for split, table in tables.items()
    }
    rows: dict[str, list[tuple[int, int]]] = {split: [] for split in tables}
    for image, (split, _) in enumerate(judged.places):
        name = new_class.get(image, names[int(judged.trust.given[image])])
        if name is None:
            continue
        to = next(other for other in (split, *tables) if name in number_of[other])
        if tables[to].item_shape != tables[split].item_shape:
            raise DertsError(f"images of {split!r} do not have the size of those of {to!r}")
        rows[to].append((image, number_of[to][name]))
    contents = {}
    for split, found in rows.items():
        images = [image for image, _ in found]
        contents[split] = replace(
            SplitContent.of(tables[split], [judged.paths[image] for image in images]),
            blocks=_blocks(judged, images),
            labels=torch.tensor([label for _, label in found], dtype=torch.long),
        )
    about = {"kind": "cleaned", "name": Path(origin).name}
    return write_store(
        contents, destination, about,
        settings=store_settings(origin), overwrite=overwrite, beside=beside,
    )  # fmt: skip


def _blocks(judged: JudgedItems, images: Sequence[int]) -> Iterator[Tensor]:
    """The items of these numbers, a few hundred at once."""
    for start in range(0, len(images), 512):
        yield torch.stack(judged.items(images[start : start + 512]))
