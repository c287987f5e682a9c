"""Facility location in two rounds, for more rows than one process can compare with each other.

The rows are dealt out at random; each share picks more rows than are wanted (round 1), and the
wanted number is picked from all of these, each counting for the rows it stands for (round 2). Work
and memory for n shares are about 1 / n² of those of `select` per share. See docs/selection.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from derts.errors import DertsError
from derts.facility_location.distances import Distances
from derts.facility_location.greedy import lazy
from derts.facility_location.selection import Selection, select, whole_number

if TYPE_CHECKING:
    from derts.distributed import Group

PICKS = 8192  # of round 1, all shares together; at least TWICE what is wanted from each
TWICE = 2
KEPT_GIB = 2.0  # of distances in round 2
AT_ONCE = 1 << 22  # distances computed at once for the assignment


def select_two_rounds(
    gradients: Tensor, k: int, *, shares: int = 1, seed: int = 0, group: Group | None = None
) -> Selection:
    """Selects ``k`` of the N rows of ``gradients`` [N, d], all of them on every process.

    ``shares`` is how many parts the rows are dealt out to; the processes of ``group``, where there
    are several, take one part each. The selection is the same on every process. Its objective is a
    little larger than that of `select`.

    >>> rows = torch.tensor([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]])
    >>> select_two_rounds(rows, 2, shares=2).weights.tolist()
    [3.0, 3.0]
    """
    together = group if group is not None and group.size > 1 else None
    shares = shares if together is None else together.size
    rows = gradients.detach().float().cpu()
    if rows.ndim != 2 or not 1 <= shares <= len(rows):
        wrong = f"{shares} shares of gradients of shape {list(rows.shape)}"
        raise DertsError(f"{wrong}; give a matrix [rows, dimensions] and at most one share per row")
    k = whole_number("k", k, 1, len(rows), "the number of rows, ")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    parts = order.tensor_split(shares)
    each = min(len(rows) // shares, max(TWICE * k, PICKS // shares))
    mine = parts if together is None else [parts[together.rank]]
    found = [select(rows[part], each) for part in mine]
    chosen = torch.cat([part[one.indices] for part, one in zip(mine, found, strict=True)])
    counts = torch.cat([one.weights for one in found])
    if together is not None:
        chosen, counts = together.collect(chosen), together.collect(counts)
    picks = torch.from_numpy(lazy(Distances(rows[chosen], KEPT_GIB), k, counts.numpy())[0])
    if together is not None:
        picks = together.same(picks)
    indices = chosen[picks]
    left = torch.zeros(k, dtype=torch.float64)  # the objective after each pick
    owners = []
    for some in rows.split(max(1, AT_ONCE // k)):
        distances = torch.cdist(some, rows[indices])
        left += distances.cummin(1).values.double().sum(0)
        owners.append(distances.argmin(1))
    nearest = torch.cat(owners)
    spread = (rows.amax(0) - rows.amin(0)).norm().double()  # no two rows are further apart
    sums = torch.cat((spread[None] * len(rows), left))
    return Selection(
        indices=indices,
        weights=torch.bincount(nearest, minlength=k).float(),
        gains=sums[:-1] - sums[1:],
        objective=float(left[-1]),
        assignment=nearest,
        settings={"k": k, "engine": "two rounds", "shares": shares, "seed": seed},
    )
