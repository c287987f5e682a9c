"""Strategies side by side: the same seeds, the same warm-up, the same test tasks."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from derts.clock import SELECTION_PHASES, TRAINING_PHASES
from derts.config import StrategyConfig, TrainConfig
from derts.config_file import Values, with_values
from derts.data.table import ImageTable
from derts.files import write_atomically
from derts.progress import Advance
from derts.statistics import Estimate, over_seeds, paired_difference
from derts.training.checkpoint import save_checkpoint
from derts.training.run import Result, evaluation_event, make_result
from derts.training.run_folder import Run, updates_at_random
from derts.training.trainer import Trainer


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
        return {
            result["seed"]: result["accuracy"]
            for result in self.results
            if result["variant"] == variant
        }

    def difference(self, variant: str, baseline: str) -> Estimate:
        """Paired difference over the seeds that both have."""
        ours, theirs = self.accuracies(variant), self.accuracies(baseline)
        seeds = sorted(ours.keys() & theirs.keys())
        return paired_difference([ours[s] for s in seeds], [theirs[s] for s in seeds])

    def mean(self, variant: str, key: Callable[[Result], float | None]) -> float | None:
        """Mean of a number over a variant's runs; None where no run has it."""
        values = [key(result) for result in self.results if result["variant"] == variant]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    def table(self, baseline: str | None = None) -> list[tuple[str, ...]]:
        """Rows of text, the first a heading."""
        baseline = baseline or self.variants[0]
        heading = (
            "strategy", "accuracy", f"against {baseline}",
            "wrong labels kept", "ms/update", "selection",
        )  # fmt: skip
        rows: list[tuple[str, ...]] = [heading]
        for name in self.variants:
            kept = self.mean(name, lambda result: result["noise"]["kept"])
            milliseconds = self.mean(name, lambda result: result["ms_per_update"])
            share = self.mean(name, lambda result: result["selection_share"])
            difference = "" if name == baseline else self.difference(name, baseline).shown("+")
            rows.append(
                (
                    name,
                    str(over_seeds(list(self.accuracies(name).values()))),
                    difference,
                    "" if kept is None else f"{100 * kept:.1f}%",
                    f"{milliseconds:.0f}",
                    f"{100 * (share or 0.0):.1f}%",
                )
            )
        return rows

    def save(self, path: Path | str, **about: Any) -> None:
        """Write all results as one JSON file."""
        content = json.dumps({**about, "runs": self.results}) + "\n"
        write_atomically(Path(path), content.encode())

    @staticmethod
    def load(path: Path | str) -> Comparison:
        """Read what `save` wrote."""
        return Comparison(json.loads(Path(path).read_text(encoding="utf-8"))["runs"])


def compare(
    base: TrainConfig,
    variants: Mapping[str, Values],
    seeds: Sequence[int],
    tables: Mapping[str, ImageTable],
    *,
    after_run: Callable[[Result, Trainer], None] = lambda result, trainer: None,
    advance: Advance = lambda count=1, note=None: None,
    comparison: Comparison | None = None,
    folder: Path | None = None,
) -> Comparison:
    """Train every variant (values on top of `base`) with every seed.

    Variants that differ in nothing but the strategy continue from one shared warm-up. With a
    `folder`, each leaves a run folder NAME-seedN in it, over one that may be there.
    """
    comparison = comparison or Comparison()
    for seed in seeds:
        warm: dict[TrainConfig, tuple[dict[str, Any], list[Result]]] = {}
        for name, values in variants.items():
            config = replace(with_values(base, values, f"variant {name}"), seed=seed).resolved()
            events: list[Result] = []
            trainer = Trainer(config, tables, events.append)
            run = None if folder is None else _folder(folder / f"{name}-seed{seed}", trainer)
            shared = replace(config, strategy=StrategyConfig(warmup=config.strategy.warmup))
            if shared not in warm:
                _train_validating(trainer, config.strategy.warmup, advance)
                warm[shared] = (copy.deepcopy(trainer.state_dict()), list(events))
            else:
                state, earlier = warm[shared]
                trainer.load_state_dict(copy.deepcopy(state))
                events += earlier
            before = dict(trainer.clock.seconds)
            _train_validating(trainer, config.updates, _named(name, advance))
            evaluation = trainer.judge(config.evaluation.split)
            result = make_result(trainer, evaluation)
            rounds = [event for event in events if event["event"] == "round"]
            result |= {"variant": name, **summarise(trainer, before, rounds)}
            comparison.results.append(result)
            if run is not None:
                _write(run, trainer, events, result)
            after_run(result, trainer)
    return comparison


def _named(name: str, advance: Advance) -> Advance:
    return lambda count=1, note=None: advance(count, f"{name}: {note}")


def _folder(path: Path, trainer: Trainer) -> Run:
    run = Run.create(path, trainer.config, overwrite=True)
    trainer.context.keep_round = run.keep_round
    return run


def _train_validating(trainer: Trainer, until: int, advance: Advance) -> None:
    """Train up to an update; on the way, validation accuracy as often as the config says."""
    every, until = trainer.config.validate_every, min(until, trainer.config.updates)
    while trainer.update < until:
        following = (trainer.update // every + 1) * every if every else until
        trainer.train(min(following, until), advance)
        if trainer.validation_is_due():
            trainer.log(evaluation_event("validation", trainer, trainer.validate()))


def _write(run: Run, trainer: Trainer, events: list[Result], result: Result) -> None:
    for event in events:
        run.log(event)
    save_checkpoint(run.path / "checkpoints", trainer.update, trainer.state_dict())
    run.write_result(result)


def summarise(trainer: Trainer, before: Mapping[str, float], rounds: list[Result]) -> Result:
    """Time per update and the share of selection since the warm-up; noise, averaged over rounds."""
    spent = {
        name: total - before.get(name, 0.0)
        for name, total in trainer.clock.seconds.items()
        if name in TRAINING_PHASES
    }
    whole = sum(spent.values())
    selection = sum(spent.get(name, 0.0) for name in SELECTION_PHASES)
    updates = trainer.config.updates - min(trainer.config.strategy.warmup, trainer.config.updates)
    noise: dict[str, float | None] = {}
    for key in ("pool", "selected", "dropped", "kept"):
        known = [event["noise"][key] for event in rounds if event["noise"][key] is not None]
        noise[key] = round(sum(known) / len(known), 6) if known else None
    return {
        "ms_per_update": round(1000 * whole / max(updates, 1), 3),
        "selection_share": round(selection / whole, 6) if whole else 0.0,
        "noise": noise,
        "dropped_share": _mean([event["looks_noisy"] / event["pool"] for event in rounds]),
        "effective_tasks": _mean([event["effective_tasks"] for event in rounds]),
        "rounds": len(rounds),
        "updates_at_random": updates_at_random(rounds, trainer.update)[0],
    }


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 6) if values else None
