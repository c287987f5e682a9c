"""Accuracy along the way of runs that `derts reproduce` left: training, validation, test.

    python benchmarks/learning_curves.py runs/reproduce/mini-imagenet/*16classes* --out FILE.json

One row per run folder: training accuracy and accuracy on validation classes by update as they were
logged, and on test classes at the points where a result was kept.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from derts.training.run_folder import Run


def curves(folder: Path) -> dict[str, Any]:
    """What a run folder tells."""
    run = Run.open(folder)
    results = [json.loads(file.read_text()) for file in sorted(folder.glob("result-*.json"))]
    events = list(run.events())

    def logged(kind: str) -> dict[int, float]:
        found = [event for event in events if event["event"] == kind and "accuracy" in event]
        return {int(event["update"]): round(event["accuracy"], 2) for event in found}

    training, validation = logged("update"), logged("validation")
    return {
        "run": folder.name,
        "learner": run.config.learner.name,
        "strategy": folder.name.split(run.config.learner.name + "-")[1].split("-")[0],
        "shot": run.config.tasks.shot,
        "classes": run.config.tasks.class_budget,
        "turned": run.config.tasks.turned,
        "seed": run.config.seed,
        "training": {at: training[at] for at in validation if at in training},
        "validation": validation,
        "test": {result["updates"]: result["accuracy"] for result in results},
        "code": results[0]["code"] if results else None,
        "machine": results[0]["machine"] if results else None,
    }


def main() -> None:
    """Read the folders, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found = [curves(folder) for folder in options.runs]
    lines = ",\n".join(json.dumps(row) for row in found)
    options.out.write_text(f'{{"runs": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"{len(found)} runs in {options.out}")


if __name__ == "__main__":
    main()
