"""Do labels of new photos get better if the examples are cleaned first? Class means of features.

    python benchmarks/pretrained.py --data mini --features rows --each 100 --updates 0 --out x.json
    python benchmarks/cleaned_examples.py --features rows --out results/cleaned-examples-cpu.json

Examples of some classes get wrong labels, are cleaned by trust, and label other rows. Every rule
sees the same draws; differences are paired. `true` has the right labels: no cleaning does better.
"""

from pathlib import Path

import torch
import tyro
from pretrained import together
from timing import write_with_code
from torch import Tensor

import derts
from derts.data import open_data
from derts.statistics import over_seeds

CASES = ((12, 40, 0.2), (12, 20, 0.2), (12, 10, 0.2), (12, 5, 0.2), (12, 40, 0.4), (12, 40, 0.0))


def accuracy(rows: Tensor, labels: Tensor, weights: Tensor, query: Tensor, true: Tensor) -> float:
    """In %, of the nearest weighted mean."""
    members = torch.eye(int(true.max()) + 1)[labels] * weights[:, None]
    means = (members / members.sum(0).clamp(min=1e-9)).T @ rows
    return 100 * float((torch.cdist(query, means).argmin(1) == true).float().mean())


def main(features: Path, out: Path, draws: int = 20, query: int = 40) -> None:
    """Every case, every rule, on a store of features whose classes have 41 rows or more."""
    table, found = together(open_data(features)), []
    for way, shot, wrong in CASES:
        scores: dict[str, list[float]] = {}
        for number in range(draws):
            random = torch.Generator().manual_seed(number)
            classes = torch.randperm(len(table.class_names), generator=random)[:way].tolist()
            groups = [table.class_indices()[one] for one in classes]
            groups = [group[torch.randperm(len(group), generator=random)] for group in groups]
            rows = table.gather(torch.cat([group[:shot] for group in groups]))
            rest = [group[shot : shot + query] for group in groups]
            asked, true = table.gather(torch.cat(rest)), torch.arange(way)
            of_query = true.repeat_interleave(torch.tensor([len(group) for group in rest]))
            true = true.repeat_interleave(shot)
            bad = torch.randperm(len(true), generator=random)[: round(wrong * len(true))]
            given = true.clone()
            given[bad] += torch.randint(1, way, (len(bad),), generator=random)
            given %= way
            trust = derts.label_trust(rows, given, classes=list(map(str, range(way))))
            right, all_of_them = trust.probability.clamp(min=1e-6), torch.ones(len(true))
            sure = (trust.suggestion != given) & (trust.sure >= 0.95)
            moved = torch.where(sure, trust.suggestion, given)
            kept = (sure | (right >= 0.5)).float()
            for name, labels, weights in (
                ("given", given, all_of_them), ("true", true, all_of_them),
                ("wrong ones left out", given, (given == true).float()), ("mix", moved, kept),
                ("drop", given, (right >= 0.5).float()), ("relabel", moved, all_of_them),
                ("weighted by trust", given, right),
            ):  # fmt: skip
                scores.setdefault(name, []).append(accuracy(rows, labels, weights, asked, of_query))
        row: dict[str, object] = {"way": way, "shot": shot, "wrong": wrong}
        row["given"] = round(sum(scores["given"]) / draws, 2)
        for name, values in scores.items():
            if name != "given":
                better = over_seeds([a - b for a, b in zip(values, scores["given"], strict=True)])
                row[name] = [round(better.mean, 2), round(better.interval, 2)]
        found.append(row)
        print(row, flush=True)
    write_with_code(out, draws=draws, cases=found)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
