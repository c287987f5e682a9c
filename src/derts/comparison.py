"""Strategies side by side: the same seeds, the same warm-up, the same test tasks."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from derts.config import StrategyConfig, TrainConfig
from derts.config_file import Values, with_values
from derts.data.table import Table
from derts.files import write_atomically
from derts.progress import Advance, unheard
from derts.statistics import over_seeds, paired_by_seed
from derts.training.driver import Driver
from derts.training.result import Result
from derts.training.run_folder import Run
from derts.training.trainer import Trainer

KEPT_COLUMN = "wrong labels kept"


@dataclass
class Comparison:
    """Results of several variants and seeds; the first variant is the one compared with."""

    results: list[Result] = field(default_factory=list)

    @property
    def variants(self) -> list[str]:
        """Names in the order in which they were run."""
        return list(dict.fromkeys(result["variant"] for result in self.results))

    def accuracies(self, variant: str) -> dict[int, float]:
        """Accuracy by seed."""
        found = [result for result in self.results if result["variant"] == variant]
        return {result["seed"]: result["accuracy"] for result in found}

    def difference(self, variant: str, baseline: str) -> str:
        """Paired difference over the seeds that both have, or that there are none."""
        ours, theirs = self.accuracies(variant), self.accuracies(baseline)
        found = paired_by_seed(ours, theirs)
        if found is not None:
            return found.shown("+")
        mine, others = (", ".join(map(str, sorted(one))) for one in (ours, theirs))
        return f"no seed in common: {mine or 'none'} against {others or 'none'}"

    def table(self) -> list[tuple[str, ...]]:
        """Rows of text, the first a heading; wrong labels only where they are known."""
        baseline = self.variants[0]
        columns = ("accuracy", f"against {baseline}", KEPT_COLUMN, "ms/update", "selection")
        rows: list[tuple[str, ...]] = [("strategy", *columns)]
        for name in self.variants:
            results = [result for result in self.results if result["variant"] == name]
            kept = _mean(result["noise"]["kept"] for result in results)
            milliseconds = _mean(result["ms_per_update"] for result in results)
            share = _mean(result["selection_share"] for result in results) or 0.0
            accuracy = str(over_seeds(list(self.accuracies(name).values())))
            difference = "" if name == baseline else self.difference(name, baseline)
            wrong = "" if kept is None else f"{100 * kept:.1f}%"
            times = f"{milliseconds:.0f}", f"{100 * share:.1f}%"
            rows.append((name, accuracy, difference, wrong, *times))
        if any(row[3] for row in rows[1:]):
            return rows
        return [(*row[:3], *row[4:]) for row in rows]

    def save(self, path: Path, **about: Any) -> None:
        """Write all results as one JSON file."""
        content = json.dumps({**about, "runs": self.results}) + "\n"
        write_atomically(path, content.encode())


def compare(
    base: TrainConfig,
    variants: Mapping[str, Values],
    seeds: Sequence[int],
    tables: Mapping[str, Table],
    *,
    after_run: Callable[[Result], None] = lambda result: None,
    advance: Advance = unheard,
    folder: Path | None = None,
) -> Comparison:
    """Train every variant (values on top of `base`) with every seed.

    Variants that differ in nothing but the strategy continue from one shared warm-up. With a
    `folder`, each leaves a run folder NAME-seedN in it, over one that may be there.
    """
    comparison = Comparison()
    with TemporaryDirectory() as shared:
        for seed, (name, values) in itertools.product(seeds, variants.items()):
            config = replace(with_values(base, values, f"variant {name}"), seed=seed).resolved()
            trainer = Trainer(config, tables)
            run = None
            if folder is not None:
                run = Run.create(folder / f"{name}-seed{seed}", config, True, trainer.learner)
            start = replace(config, strategy=StrategyConfig(warmup=config.strategy.warmup))
            warmup = Path(shared, hashlib.sha256(repr(start).encode()).hexdigest())

            def named(count: int = 1, note: str | None = None, name: str = name) -> None:
                advance(count, f"{name}: {note}" if note else None)

            result = Driver(trainer, run, warmup=warmup).drive(named)
            assert result is not None  # nobody asked it to stop
            per_update = result["seconds_per_update"] or 0.0
            result |= {"variant": name, "ms_per_update": round(1000 * per_update, 3)}
            comparison.results.append(result)
            after_run(result)
    return comparison


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
