"""Write the measured tables of docs/results.md from results/*.json.

    python benchmarks/tables.py            write
    python benchmarks/tables.py --check    exit 1 if the page is not what would be written

No number in that page is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from derts.comparison import Comparison
from derts.statistics import over_seeds

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results.md"

HEAD = """# What we measured

Written by `python benchmarks/tables.py` from the files in `results/`; do not edit by hand.
Accuracies are percent on 600 fixed, clean test tasks of classes never trained on; ± is the 95%
interval over seeds (Student's t) unless said otherwise.
"""


def markdown(rows: list[tuple[str, ...]]) -> str:
    """A heading and rows as a Markdown table."""
    lines = [f"| {' | '.join(rows[0])} |", f"| --- |{' ---: |' * (len(rows[0]) - 1)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows[1:]]
    return "\n".join(lines)


def machine_line(runs: list[dict[str, Any]]) -> str:
    """Where a file's runs were made."""
    found = runs[0]["machine"]
    return f"{found.get('accelerator', found['processor'])}, torch {found['torch']}"


def baseline(path: Path) -> str:
    """Random sampling with every learner."""
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    rows: list[tuple[str, ...]] = [
        ("learner", "seeds", "updates", "test", "validation", "untrained", "ms per update")
    ]
    for name in dict.fromkeys(run["config"]["learner"]["name"] for run in runs):
        ours = [run for run in runs if run["config"]["learner"]["name"] == name]

        def column(key: str, ours: list[dict[str, Any]] = ours) -> list[float]:
            return [run[key] for run in ours]

        accuracy = over_seeds(column("accuracy"))
        shown = str(accuracy) if len(ours) > 1 else f"{accuracy.mean:.2f} (one seed)"
        rows.append(
            (
                name,
                str(len(ours)),
                f"{ours[0]['updates']} × {ours[0]['config']['meta_batch']} tasks",
                shown,
                f"{sum(column('validation_accuracy')) / len(ours):.2f}",
                f"{sum(column('untrained_accuracy')) / len(ours):.2f}",
                f"{sorted(column('ms_per_update'))[len(ours) // 2]:.1f}",
            )
        )
    return f"""## Random tasks, mini-ImageNet 5-way 5-shot, CNN4-64

`python benchmarks/baseline.py --data mini --maml-updates 150 --out results/{path.name}`
({machine_line(runs)}; time is the median over seeds). Learning rates were chosen on validation
classes.

{markdown(rows)}
"""


def noisy_tasks(path: Path) -> str:
    """Random, paper and derts with and without heavily mislabelled tasks."""
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    parts = []
    for learner in dict.fromkeys(run["learner"] for run in runs):
        found = Comparison([run for run in runs if run["learner"] == learner])
        names = found.variants
        noisy = [name for name in names if not name.endswith("clean")]
        clean = [name for name in names if name.endswith("clean")]
        for kind, chosen in (("60% of tasks mislabelled", noisy), ("clean tasks", clean)):
            part = Comparison([run for run in found.results if run["variant"] in chosen])
            parts.append(f"**{learner}, {kind}**\n\n{markdown(part.table())}\n")
        parts.append(recovered(found, noisy) + "\n")
    settings = runs[0]["config"]
    return f"""## Mislabelled tasks, mini-ImageNet 5-way 5-shot, CNN4-64

`python benchmarks/noisy_tasks.py --data mini --out results/{path.name}` ({machine_line(runs)}).
`tasks` noise: in 60% of the training tasks each label is wrong with probability 0.8.
{settings["updates"]} updates, the first {settings["strategy"]["warmup"]} a warm-up that all
variants share. Evaluation tasks are clean.

{chr(10).join(parts)}"""


def recovered(found: Comparison, noisy: list[str]) -> str:
    """How much of what the noise cost random sampling each variant wins back, and what it drops."""
    means = {
        name: over_seeds(list(found.accuracies(name).values())).mean for name in found.variants
    }
    lost = means["random clean"] - means["random"]
    parts = [
        f"{name} wins back {100 * (means[name] - means['random']) / lost:.0f}%"
        for name in noisy
        if name != "random"
    ]
    dropped = found.mean("derts clean", lambda result: result["dropped_share"])
    drops = "" if dropped is None else f" On clean tasks derts drops {100 * dropped:.2f}%."
    return f"The noise costs random sampling {lost:.2f} points; {'; '.join(parts)}.{drops}"


def page() -> str:
    """The whole of docs/results.md."""
    parts = [HEAD]
    for name, write in (("baseline-h200.json", baseline), ("noisy-tasks-h200.json", noisy_tasks)):
        path = ROOT / "results" / name
        if path.exists():
            parts.append(write(path))
    return "\n".join(parts)


def main() -> None:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
