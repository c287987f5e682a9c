"""What the engines ask of a distance matrix, and the arrays they speak of."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]
Entries = tuple[NDArray[np.int32], Floats, Integers]

# Relative error of float32 sums of terms none of which is negative, 1024 at most in sequence.
QUICK_ERROR = 1032 * 2.0**-24


class Matrix(Protocol):
    """What the engines ask of a distance matrix; ``quick`` sums err by QUICK_ERROR at most."""

    count: int
    scale: float
    cheap_rows: bool
    """Whether one row costs about its share of many rows."""

    def row(self, index: int) -> Floats:
        """Distances of one row to all rows, float32 [N]; not to be changed."""

    def rows(self, indices: Integers) -> Floats:
        """Distances of the rows ``indices`` [b] to all rows, float32 [b, N]; a fresh array."""

    def totals(self) -> tuple[Doubles, float]:
        """The sum of each row, quick, float64 [N], and the largest distance."""

    def gains(self, cap: Floats) -> Doubles:
        """Σ_j max(0, cap_j − D_ij) for each row i, quick, float64 [N]."""

    def exact_gains(self, indices: Integers, cap: Floats) -> Doubles:
        """Σ_j max(0, cap_j − D_ij) for each i of ``indices`` [b], exact, float64 [b]."""

    def lost_gains(self, indices: Integers, low: Floats, high: Floats) -> Doubles:
        """Σ_j high_j − clip(D_ji, low_j, high_j) over j of ``indices``, quick, float64 [N].

        This is what candidate i loses when the caps of those rows fall from high to low.
        """

    def below(self, cap: Floats) -> Entries:
        """All entries D_ji < cap_j, row by row.

        Returns their columns i int32 [E], their values float32 [E] and where each row begins,
        int64 [N + 1].
        """
