"""derts select"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from derts.commands.parse import parse, print_rows


@dataclass(frozen=True)
class SelectOptions:
    """Select K rows of a matrix that stand for all of them (facility location).

    GRADIENTS is a .npy file of numbers [rows, dimensions]; any matrix will do. The result is JSON:
    indices in the order of picking, weights (how many rows each stands for), gains, objective.

    Examples:
      derts select gradients.npy --k 960 --out selection.json
    """

    gradients: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="GRADIENTS")]
    """A .npy file."""
    k: int
    """How many rows to select."""
    out: Path
    """JSON file to write."""
    engine: Literal["greedy", "lazy", "stochastic"] = "greedy"
    """Exact greedy, the same by lazy evaluation, or from random candidates."""
    epsilon: float = 0.01
    """stochastic: smaller looks at more candidates."""
    seed: int = 0
    """stochastic: decides the candidates."""
    memory_limit_gib: float = 2.0
    """Distances are kept in memory up to this size, and recomputed above it."""


def select(arguments: Sequence[str]) -> None:
    """Parse, select, print."""
    options = parse(SelectOptions, arguments, "select")

    from derts.facility_location import select_file

    found = select_file(**asdict(options))
    print_rows(
        [
            ("selected", f"{len(found.indices)} rows"),
            ("objective", f"{found.objective:.6g} (sum of distances to the nearest selected row)"),
            ("largest weight", f"{float(found.weights.max()):.0f} rows"),
            ("written", str(options.out)),
        ]
    )
