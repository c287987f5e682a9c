"""Data with known wrong labels: made from a clean store, and read again by scoring alone."""

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from derts.data.store import StoreDescription, item_names, store_settings
from derts.data.store_writing import SplitContent, write_store
from derts.data.table import Table
from derts.errors import DertsError
from derts.files import read_csv, regular
from derts.labels.judging import JudgedItems
from derts.tasks.randomness import generator

TRUE_LABELS = "true_labels.npy"
FIRST = 100


def confusion_matrix(noise: str, rate: float | None, class_names: tuple[str, ...]) -> Tensor:
    """float64 [C, C]: the share of images of class c (row) that are given as class k (column).

    noise  symmetric (any other class), pair (the next class), or confusion:FILE, a CSV with columns
           class, given, share; a rate scales the file's shares to this share of wrong labels

    >>> confusion_matrix("pair", 0.25, ("a", "b")).tolist()
    [[0.75, 0.25], [0.25, 0.75]]
    """
    count = len(class_names)
    if count < 2:
        raise DertsError("wrong labels need two classes or more: the training split has fewer")
    if rate is not None and not 0 <= rate <= 1:
        raise DertsError(f"rate is {rate}: give a share from 0 to 1")
    kind, _, file = noise.partition(":")
    if kind == "confusion" and file:
        found = _read_confusions(Path(file), class_names)
        if rate is not None:
            found *= rate / max(float(found.sum(1).mean()), 1e-12)
    elif rate is None:
        raise DertsError("how many labels are to be wrong? give --rate, for example --rate 0.2")
    elif noise == "symmetric":
        found = torch.full((count, count), rate / (count - 1), dtype=torch.float64)
    elif noise == "pair":
        found = rate * torch.eye(count, dtype=torch.float64).roll(1, 1)
    else:
        raise DertsError(f"no noise {noise!r}: choose symmetric, pair or confusion:FILE")
    found.fill_diagonal_(0)
    wrong = found.sum(1)
    if float(wrong.max()) > 1 + 1e-9:
        name = class_names[int(wrong.argmax())]
        raise DertsError(f"more than all images of class {name!r} would be wrong: lower the shares")
    return found + torch.diag((1 - wrong).clamp(min=0))


def _read_confusions(path: Path, class_names: tuple[str, ...]) -> Tensor:
    number_of = {name: number for number, name in enumerate(class_names)}
    found = torch.zeros(len(class_names), len(class_names), dtype=torch.float64)
    try:
        rows = read_csv(path, "class", "given", "share")
        if not rows:
            raise DertsError(f"{path} has no rows: write columns class, given and share")
        for row in rows:
            share = float(row["share"])
            if not 0 <= share <= 1:
                raise ValueError
            found[number_of[row["class"]], number_of[row["given"]]] = share
    except KeyError as error:
        raise DertsError(f"{path} names {error}, which is no training class: remove it") from None
    except ValueError:
        raise DertsError(f"{path}: every share must be a number from 0 to 1") from None
    return found


def corrupt_labels(labels: Tensor, confusion: Tensor, seed: int) -> Tensor:
    """Labels int64 [n] of which every class loses its share to each other class, by lot.

    >>> wrong = corrupt_labels(torch.arange(4).repeat(10), confusion_matrix(
    ...     "pair", 0.2, tuple("abcd")), seed=0)
    >>> torch.bincount(wrong).tolist(), int((wrong != torch.arange(4).repeat(10)).sum())
    ([10, 10, 10, 10], 8)
    """
    random, found = generator((seed, "corrupt")), labels.clone()
    for number, row in enumerate(confusion):
        members = (labels == number).nonzero().squeeze(1)
        members = members[torch.randperm(len(members), generator=random)]
        wrong = members[: round(float(1 - row[number]) * len(members))]
        others = row.clone()
        others[number] = 0
        if len(wrong):
            found[wrong] = torch.multinomial(others, len(wrong), True, generator=random)
    return found


def corrupt_store(
    tables: Mapping[str, Table],
    source: str,
    destination: Path,
    given: Tensor,
    *,
    overwrite: bool = False,
) -> StoreDescription:
    """Write a store whose training images have the given labels; the true ones lie beside it."""
    if destination.resolve() == Path(source).resolve():
        raise DertsError(f"{destination} is the source itself: choose another destination")
    if (Path(source) / TRUE_LABELS).exists():
        raise DertsError(f"{source} has wrong labels already: take the store that it was made from")
    if "true" in tables:
        raise DertsError(f"a split called 'true' would be mixed up with {TRUE_LABELS}: rename it")
    contents = {
        split: SplitContent.of(table, item_names(source, split)) for split, table in tables.items()
    }
    contents["train"] = replace(contents["train"], labels=given)
    true = io.BytesIO()
    np.save(true, tables["train"].labels.numpy().astype("<i8"), allow_pickle=False)
    origin = {"kind": "corrupted", "name": Path(source).name}
    beside, settings = {TRUE_LABELS: true.getvalue()}, store_settings(source)
    return write_store(
        contents, destination, origin, settings=settings, beside=beside, overwrite=overwrite
    )


def true_labels(store: str, images: Table) -> Tensor:
    """The true labels int64 [n] of a corrupted store's training images: for scoring alone."""
    path = Path(store) / TRUE_LABELS
    try:
        found = np.load(regular(path), allow_pickle=False)
    except FileNotFoundError:
        fix = "only what derts data corrupt wrote can be scored"
        raise DertsError(f"{store} has no {TRUE_LABELS}: {fix}") from None
    except Exception as error:  # numpy parses the header as Python and lets any mistake through
        raise DertsError(f"{path} cannot be read ({error}): make the store again") from None
    if found.shape != (len(images),) or found.dtype.kind != "i":
        raise DertsError(f"{path} does not fit the {len(images)} images: make the store again")
    return torch.from_numpy(found.astype(np.int64))


@dataclass(frozen=True)
class DetectionScore:
    """How well wrong labels were found: the ranking's average precision; how many images come
    first, and the share of them that is wrong; the share of labels that is wrong.
    """

    average_precision: float
    first: int
    precision: float
    estimated: float
    true: float

    @property
    def line(self) -> str:
        """The score in one line."""
        return (
            f"average precision {self.average_precision:.3f}; of the first {self.first} images "
            f"{100 * self.precision:.0f}% are wrong; wrong labels: {100 * self.estimated:.1f}% "
            f"estimated, {100 * self.true:.1f}% true"
        )


def score_detection(right: Tensor, wrong: Tensor) -> DetectionScore:
    """Score probabilities [n] of labels being right against which ones are wrong, bool [n].

    >>> score_detection(torch.tensor([0.1, 0.9, 0.4]), torch.tensor([True, False, False])).line
    'average precision 1.000; of the first 3 images 33% are wrong; ...: 53.3% estimated, 33.3% true'
    """
    ranked = wrong[right.argsort(stable=True)].double()
    precisions = ranked.cumsum(0) / torch.arange(1, len(ranked) + 1)
    first = ranked[:FIRST]
    return DetectionScore(
        average_precision=float((precisions * ranked).sum() / ranked.sum().clamp(min=1)),
        first=len(first),
        precision=float(first.mean()),
        estimated=float(1 - right.double().mean()),
        true=float(ranked.mean()),
    )


def score_judged(judged: JudgedItems, data: str) -> DetectionScore:
    """The score of judged images of a corrupted store, among its training images."""
    if "train" not in judged.tables:
        raise DertsError("only the training split has true labels: leave out --split")
    images = judged.tables["train"]
    in_train = torch.tensor([split == "train" for split, _ in judged.places])
    wrong = true_labels(data, images) != images.labels
    return score_detection(judged.trust.probability[in_train], wrong)
