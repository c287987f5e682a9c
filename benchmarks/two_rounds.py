"""How much two-round selection loses against `select`.

python benchmarks/two_rounds.py results/soak-two-rounds-cpu.json
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from timing import write_with_code

from derts.facility_location import select, select_two_rounds
from derts.tasks.randomness import generator

ROWS, DIMENSIONS, K, SHARES = 100_000, 5, 1000, 4


def rows_of(kind: str) -> torch.Tensor:
    """[ROWS, DIMENSIONS]: one cloud, or many of different widths, as task gradients form them."""
    random = generator((0, kind))
    noise = torch.randn(ROWS, DIMENSIONS, generator=random)
    if kind == "one cloud":
        return noise
    centres = 3 * torch.randn(60, DIMENSIONS, generator=random)
    member = torch.randint(60, (ROWS,), generator=random)
    return centres[member] + noise * torch.rand(ROWS, 1, generator=random)


def main(out: Path) -> None:
    found, ratios = [], []
    for kind in ("one cloud", "60 clouds"):
        rows = rows_of(kind)
        start = time.perf_counter()
        central = select(rows, K)
        middle = time.perf_counter()
        two = select_two_rounds(rows, K, shares=SHARES)
        end = time.perf_counter()
        ratios.append(two.objective / central.objective)
        found.append(
            {
                "rows": kind,
                "central_objective": central.objective,
                "two_rounds_objective": two.objective,
                "ratio": round(ratios[-1], 5),
                "central_seconds": round(middle - start, 1),
                "two_rounds_seconds": round(end - middle, 1),
            }
        )
        print(found[-1], flush=True)
    write_with_code(out, n=ROWS, d=DIMENSIONS, k=K, shares=SHARES, results=found)
    assert max(ratios) <= 1.02, "more than 2% above the central objective"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
