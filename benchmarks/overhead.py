"""What a strategy costs: time per update, selection included, as a multiple of random sampling's.

    python benchmarks/overhead.py --data mini --out results/overhead-h200.json
    python benchmarks/overhead.py --quick          # tiny, on glyphs: shows that it runs

All strategies train in one process from the same warm-up, in turns of one round (as many updates
as a pool of the default size gives); the median over turns counts. They select in every round; the
last rows are the presets as they are, on clean and even pools (turns of four rounds, in which one
pool is looked at), with swapped labels and with noisy tasks. Nothing is claimed about accuracy
here: benchmarks/noisy_tasks.py measures that.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from timing import save_results

from derts.clock import TRAINING_PHASES
from derts.config import TrainConfig
from derts.config_file import PAPER, PRESETS, Values, apply_presets, with_values
from derts.data import Table, open_data
from derts.errors import DertsError
from derts.selection.rounds import LONGEST_REST
from derts.training import Trainer

STRATEGIES: dict[str, Values] = {
    "random": {"strategy": {"name": "random"}},
    "derts": PRESETS["derts"],
    "derts, pools of all images": {"strategy": {"name": "derts", "pool_images": 0}},
    "paper": {"strategy": PAPER},
    **{
        name: {"strategy": {"name": name}}
        for name in ("us", "ats", "gradmatch", "hardest", "easiest")
    },
}
WHERE_IT_PAYS: Values = {"strategy": {**PRESETS["derts"]["strategy"], "select": "where-it-pays"}}
AS_THEY_ARE: dict[str, Values] = {
    "derts, clean tasks": WHERE_IT_PAYS,
    "derts, 40% of labels swapped": {**WHERE_IT_PAYS, "tasks": {"noise": "swap:5.62"}},
    "random + votes, 40% of labels swapped": {
        "strategy": {"name": "random-votes"},
        "tasks": {"noise": "swap:5.62"},
    },
    "derts, 60% of tasks mislabelled": {**WHERE_IT_PAYS, "tasks": {"noise": "tasks:0.6"}},
}
QUICK: Values = {
    "model": {"width": 8},
    "tasks": {"shot": 1, "query": 2},
    "strategy": {"pool": 12},
    "meta_batch": 2,
}


def main() -> None:
    """Measure every learner and strategy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="glyphs")
    parser.add_argument("--learners", nargs="+", default=["anil", "protonet"])
    parser.add_argument(
        "--strategies", nargs="+", default=[*STRATEGIES, *AS_THEY_ARE], metavar="NAME"
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=40)
    parser.add_argument("--preset", nargs="*", default=["gpu"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    tables = open_data(options.data)
    found = []
    for learner in options.learners:
        base = with_values(
            apply_presets([] if options.quick else options.preset),
            {"learner": {"name": learner}, "updates": 100_000},
            "benchmark",
        )
        if options.quick:
            base = with_values(base, QUICK, "benchmark")
        warmup, turns = (1, 1) if options.quick else (options.warmup, options.turns)
        settings = {"warmup": warmup, "select": "greedy"}  # what it costs where it does
        base = with_values(base, {"strategy": settings}, "benchmark")
        found += measure(base, tables, options.strategies, turns)
    save_results(options.out, found)


def measure(
    base: TrainConfig, tables: Mapping[str, Table], names: list[str], turns: int
) -> list[dict[str, Any]]:
    """One row per strategy; prints it."""
    trainers: dict[str, Trainer] = {}
    warm: dict[str, Any] | None = None
    for name in names:
        # trust acts at the start of a run, and all strategies share a start here
        config = with_values(base, (STRATEGIES | AS_THEY_ARE)[name], name)
        config = with_values(config, {"strategy": {"judge": "none"}}, name)
        try:
            trainer = Trainer(config, tables)
        except DertsError as error:
            print(f"{base.learner.name} {name}: {error}")
            continue
        if warm is None:
            trainer.train(config.strategy.warmup)
            warm = trainer.state_dict()
        trainer.load_state_dict(warm)
        trainers[name] = trainer
    strategy = base.strategy
    of_round = max(1, int(strategy.ratio * strategy.pool) // base.meta_batch)
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    phases: dict[str, dict[str, float]] = {}
    for turn in range(turns + 1):
        for name, trainer in trainers.items():
            updates = of_round * (LONGEST_REST if name in AS_THEY_ARE else 1)
            before = dict(trainer.clock.seconds)
            start = time.perf_counter()
            trainer.train(trainer.update + updates)
            if turn:  # the first one compiles what compiles itself
                seconds[name].append((time.perf_counter() - start) / updates)
                spent = phases.setdefault(name, dict.fromkeys(TRAINING_PHASES, 0.0))
                for phase in TRAINING_PHASES:
                    now = trainer.clock.seconds.get(phase, 0.0) - before.get(phase, 0.0)
                    spent[phase] += now / (updates * turns)
    rows = []
    for name, values in seconds.items():
        median = statistics.median(values)
        row: dict[str, Any] = {
            "learner": base.learner.name,
            "strategy": name,
            "ms_per_update": 1000 * median,
            "ratio": median / statistics.median(seconds["random"]),
            "all_ms": [round(1000 * value, 3) for value in values],
            "phases_ms": {phase: 1000 * value for phase, value in phases[name].items() if value},
            "updates_per_turn": of_round * (LONGEST_REST if name in AS_THEY_ARE else 1),
            "device": str(trainers[name].device),
        }
        where = ", ".join(f"{key} {value:.2f}" for key, value in row["phases_ms"].items())
        print(
            f"{base.learner.name} {name}: {row['ms_per_update']:.2f} ms per update, "
            f"{row['ratio']:.3f} × random ({where})",
            flush=True,
        )
        rows.append(row)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return rows


if __name__ == "__main__":
    main()
