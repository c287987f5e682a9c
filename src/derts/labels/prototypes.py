"""Trust from class prototypes: which labels of a data set are wrong, seen in an embedding."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from derts.distributed import Group
from derts.errors import DertsError
from derts.labels.mixture import BLOCK, Mixture
from derts.labels.trust import FEW_SEEN, Trust

ROUNDS = 8  # of expectation maximisation …
FIRST = 3  # … of which the first begin with one rate for all classes, or look for pairs
SHARPER = 4.0  # × β in the first rounds that look for pairs: clear cases show the pattern
PAIRS_AFTER = 5, 9  # rounds after which only classes that are confused often stay confused …
PAIRS_ROUNDS = 13  # … of those in which pairs are sought
PAIR_COSTS = 3.0  # nats by which each pair must explain the labels better than one rate does …
PAIRS_GAIN = 0.005  # … and per label, all together
ALIKE, PAIRS = 5.0, 0.2  # × a class's images: how much of its confusion is that of all classes


def label_trust(
    features: Tensor | NDArray[Any] | Sequence[Any],
    labels: Tensor | NDArray[Any] | Sequence[Any],
    *,
    classes: Sequence[str] | None = None,
    group: Group | None = None,
) -> Trust:
    """How far each of n labels can be trusted, from features [n, d] of any kind.

    labels are n whole numbers or names. `classes` names the numbers 0 … C − 1. With a `group` of
    processes each gives its own images, labels as numbers and `classes`, and gets their trust.

    >>> random = torch.Generator().manual_seed(0)
    >>> true = torch.arange(600) % 6
    >>> rows = 3 * torch.eye(6)[true] + torch.randn(600, 6, generator=random)
    >>> given = true.clone()
    >>> given[:120] = (given[:120] + 1 + torch.arange(120) % 5) % 6
    >>> trust = label_trust(rows, given)
    >>> bool(trust.probability[:120].mean() < 0.2), bool(trust.probability[120:].mean() > 0.9)
    (True, True)
    """
    group = group or Group()
    numbers, names = _numbered(labels, classes, group)
    rows = _checked(features, len(numbers))
    numbers = numbers.to(rows.device)
    count = len(names)
    sizes = group.total(torch.bincount(numbers, minlength=count).double())
    alone = [names[place] for place in (sizes == 1).nonzero().squeeze(1).tolist()]
    if (several := int((sizes >= 2).sum())) < 2:
        raise DertsError(
            f"trust needs two classes with two images or more, and there "
            f"{'is' if several == 1 else 'are'} {several}: add images or classes"
        )
    alike = Mixture(rows, numbers, sizes, group, ALIKE)
    pairs = Mixture(rows, numbers, sizes, group, PAIRS)
    for number in range(ROUNDS):
        alike.improve(one_rate=number < FIRST, whiten=number in (0, FIRST))
    for number in range(PAIRS_ROUNDS):
        if number in PAIRS_AFTER:
            pairs.keep_pairs()
            if not pairs.pairs_found:
                break
        sharper = SHARPER if number < FIRST else 1.0
        pairs.improve(sharper=sharper, whiten=number in (0, FIRST))
    model = alike
    if pairs.pairs_found:
        gained = pairs.likelihood() - alike.likelihood() - PAIR_COSTS * pairs.pairs_found
        model = pairs if gained > PAIRS_GAIN * pairs.images else alike
    notes, sees = [], alike.would_see() if model is alike else 1.0
    if alone:
        notes.append(f"a class with one image cannot be judged: {_listed(alone)}")
    if sees < FEW_SEEN:
        notes.append(
            "these features tell the classes apart too weakly: if a tenth of the labels were "
            f"wrong, about {100 * sees:.0f}% of these would show"
        )
    return model.trust(tuple(names), "; ".join(notes), sees)


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def _numbered(
    labels: Tensor | NDArray[Any] | Sequence[Any], classes: Sequence[str] | None, group: Group
) -> tuple[Tensor, list[str]]:
    """Labels as int64 [n] 0 … C − 1, and the names of the C classes."""
    values = labels.detach().cpu() if isinstance(labels, Tensor) else labels
    values = _array(values, "labels differ in length: give one label per image")
    if values.ndim != 1:
        raise DertsError(f"labels have shape {list(values.shape)}; give one label per image")
    if classes is not None:
        if values.dtype.kind not in "iu" or (
            len(values) and not 0 <= values.min() <= values.max() < len(classes)
        ):
            raise DertsError(
                f"with classes, labels are whole numbers from 0 to {len(classes) - 1}: "
                "number them, or leave classes out"
            )
        return torch.from_numpy(values.astype(np.int64)), [str(name) for name in classes]
    if not group.alone:
        raise DertsError("several processes need classes=…, the same in all of them")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise DertsError("some labels are not numbers (NaN): leave those images out")
    try:
        found, places = np.unique(values, return_inverse=True)
    except TypeError:  # they cannot be sorted
        raise DertsError(
            "labels are of several kinds, or some are missing: give all as numbers or all as names"
        ) from None
    return torch.from_numpy(places.astype(np.int64).reshape(-1)), [str(name) for name in found]


def _array(values: Any, wrong: str) -> NDArray[Any]:
    """As an array; rows of different lengths are refused."""
    try:
        return np.asarray(values)
    except ValueError:
        raise DertsError(wrong) from None


def _checked(features: Tensor | NDArray[Any] | Sequence[Any], count: int) -> Tensor:
    wrong = "features are not numbers: give a matrix [images, dimensions]"
    if isinstance(features, Tensor):
        rows = features if features.layout is torch.strided else features.to_dense()
    else:
        array = _array(features, wrong)
        if array.dtype.kind not in "biuf":
            raise DertsError(wrong)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        if min(array.strides, default=0) < 0:  # torch has none of these
            array = array.copy()
        with warnings.catch_warnings(action="ignore"):  # of memory-mapped arrays: none is written
            rows = torch.from_numpy(array)
    if rows.is_complex():
        raise DertsError(wrong)
    if rows.ndim != 2 or len(rows) != count or not rows.shape[1]:
        raise DertsError(
            f"features have shape {list(rows.shape)} beside {count} labels: give a matrix "
            "[images, dimensions] with a row for each label"
        )
    if not rows.is_floating_point():
        rows = rows.float()
    parts = rows.split(max(1, BLOCK // rows.shape[1]))
    bad = (~torch.cat([part.isfinite().all(1) for part in parts])).nonzero()
    if len(bad):
        raise DertsError(f"row {int(bad[0])} of the features is not finite: leave that image out")
    return rows.detach()
