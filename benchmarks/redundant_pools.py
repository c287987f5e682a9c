r"""Does a choice of tasks pay where most repeat each other? Glyphs or photos, unseen classes.

    python benchmarks/redundant_pools.py --seeds 0 1 2 3 4 5 --out results/redundant-pools-cpu.json
    python benchmarks/redundant_pools.py --seeds 0 1 2 3 4 5 --learner anil \
        --out results/redundant-pools-anil-cpu.json
    python benchmarks/redundant_pools.py --data mini32 --split test \
        --variants random derts even --out results/redundant-photos-mini32-anil-cpu.json

Nine in ten tasks are of six common characters, the rest of all: clean, but redundant. Validation
tasks are of characters never trained on, so that it is the rare tasks that teach most. Should pools
like these not be what facility location is for, nothing is; `derts` sees that classes are used
unevenly and chooses by them. The demo's settings otherwise; one line per run. Of a store with
super-categories the common classes are those of the first one that has enough for a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
import tyro
from timing import write_with_code

from derts.commands.demo import CHARACTERS, IMAGES
from derts.config import TrainConfig
from derts.config_file import PAPER, Values, apply_presets, with_values
from derts.data import Table, glyphs, open_data
from derts.selection.strategy import Context, MetaBatch
from derts.tasks import TaskPool, TaskSampler, generator
from derts.training import Trainer
from derts.training.result import Result, make_result

COMMON, SHARE = 6, 0.9
CLEAN: Values = {
    "tasks": {"noise": "none"},
    "strategy": {"warmup": 60},
    "updates": 300,
}
FACILITIES: Values = {"name": "derts", "select": "greedy", "balance": False}
VARIANTS: dict[str, Values] = {
    "random": {"name": "random"},
    "derts": {"name": "derts"},
    "random + votes": {"name": "random-votes"},
    "the paper's rule": PAPER,
    "facility location": FACILITIES,
    "facility location, a tenth, no weights": {**FACILITIES, "weights": "none", "ratio": 0.1},
    "hardest": {"name": "hardest"},
    "random, every task as likely": {"name": "random"},
}
EVEN = "random, every task as likely"


def clean_demo(data: str, split: str, quick: bool) -> tuple[TrainConfig, Mapping[str, Table]]:
    """The demo's settings, with clean tasks and evaluated on unseen classes; and the images."""
    config = with_values(apply_presets(["demo"]), CLEAN, "benchmark")
    config = with_values(config, {"data": data, "evaluation": {"split": split}}, "benchmark")
    if quick:
        small: Values = {"model": {"width": 4}, "meta_batch": 2, "evaluation": {"tasks": 20}}
        begun: Values = {"updates": 4, "strategy": {"warmup": 2}}
        config = with_values(config, {**small, **begun}, "--quick")
    if data != "glyphs":
        return config, open_data(data)
    return config, glyphs(characters=CHARACTERS, images_per_character=IMAGES)


def common_classes(images: Table, way: int) -> tuple[str, ...]:
    """The classes that most tasks are of: the first ones, or those of a super-category."""
    categories = images.categories
    if categories is None:
        return tuple(images.class_names[:COMMON])
    for category in dict.fromkeys(categories):
        names = [n for n, c in zip(images.class_names, categories, strict=True) if c == category]
        if len(names) >= way:
            return tuple(names)
    raise SystemExit(f"no super-category has {way} classes")


class Redundant:
    """Draws tasks of which most are of a few classes."""

    def __init__(self, images: Table, config: TrainConfig) -> None:
        self.config = config
        self.common = TaskSampler(images, common_classes(images, config.tasks.way))
        self.all = TaskSampler(images)

    def __call__(self, tasks: int, purpose: str, number: int, pool_images: int = 0) -> TaskPool:
        """As a strategy asks for them."""
        seed = (self.config.seed, purpose, number)
        order = torch.randperm(tasks, generator=generator((*seed, "order")))
        chances = torch.rand(tasks, generator=generator((*seed, "common")))
        count = int((chances < SHARE).sum())
        sizes = {"common": (self.common, count), "rare": (self.all, tasks - count)}
        of = self.config.tasks
        parts = [
            sampler.draw(tasks=size, way=of.way, shot=of.shot, query=of.query, seed=(*seed, name))
            for name, (sampler, size) in sizes.items()
            if size
        ]
        return TaskPool.concatenate(parts)[order]


def rare_share(batch: MetaBatch, common: torch.Tensor) -> float:
    """How much of a meta-batch's weight is on tasks with a class that is not common."""
    assert batch.pool.classes is not None
    rare = (~torch.isin(batch.pool.classes.cpu(), common)).any(1).float()
    weights = torch.ones(len(rare)) if batch.weights is None else batch.weights.cpu()
    return float((rare * weights).sum() / weights.sum())


def one_run(config: TrainConfig, tables: Mapping[str, Table], even: bool) -> Result:
    """Train on redundant tasks (or even ones), evaluate on unseen classes."""
    trainer = Trainer(config, tables)
    names = trainer.images.class_names
    common = common_classes(trainer.images, config.tasks.way)
    numbers = torch.tensor([names.index(name) for name in common])
    if not even:
        trainer.context.draw = Redundant(trainer.images, config)
    shares: list[float] = []
    choose = trainer.strategy.next_batch

    def counted(context: Context) -> MetaBatch:
        batch = choose(context)
        if context.update >= config.strategy.warmup:
            shares.append(rare_share(batch, numbers))
        return batch

    trainer.strategy.next_batch = counted  # type: ignore[method-assign]
    trainer.train()
    result = make_result(trainer, trainer.evaluate(config.evaluation.split))
    return result | {"rare_share": round(sum(shares) / len(shares), 4)}


def main(
    out: Path,
    seeds: tuple[int, ...] = (0, 1, 2),
    learner: Literal["protonet", "anil"] = "protonet",
    data: str = "glyphs",
    split: Literal["val", "test"] = "val",
    variants: tuple[str, ...] = (),
    quick: bool = False,
) -> None:
    """Run variants (all) with every seed; quick: tiny, to see that it runs."""
    base, tables = clean_demo(data, split, quick)
    base = with_values(base, {"learner": {"name": learner}}, "--learner")
    runs: list[Result] = []
    for seed in seeds:
        for name, strategy in VARIANTS.items():
            if variants and ("even" if name == EVEN else name) not in variants:
                continue
            config = with_values(base, {"strategy": strategy, "seed": seed}, f"variant {name}")
            result = one_run(config.resolved(), tables, even=name == EVEN)
            runs.append(result | {"variant": name})
            print(
                f"{name} seed {seed}: {result['accuracy']:.2f}, "
                f"{100 * result['rare_share']:.0f}% rare",
                flush=True,
            )
            write_with_code(out, runs=runs)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
