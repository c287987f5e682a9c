"""One of two processes that judge half of the labels each; run by torchrun."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from test_prototypes import clusters, corrupted  # type: ignore[import-not-found]

from derts.distributed import joined
from derts.labels import label_trust


def main(folder: Path) -> None:
    """Judge this process's half and save the probabilities of all."""
    with joined(torch.device("cpu")) as group:
        rows, true = clusters()
        given = corrupted(true, "pair", 0.3)
        mine = group.part(len(rows))
        names = [str(number) for number in range(12)]
        trust = label_trust(rows[mine].double(), given[mine], classes=names, group=group)
        torch.save(trust.probability, folder / f"{group.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
