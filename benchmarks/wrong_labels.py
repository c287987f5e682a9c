"""Wrong labels in the data set itself: what they cost, what is won back, how well they are found.

    python benchmarks/wrong_labels.py --data mini --preset gpu --out results/wrong-labels-h200.json
    python benchmarks/wrong_labels.py --data mini --preset gpu augment --per-class 60 \\
        --updates 1000 --noise symmetric:0.4 --variants clean random best derts \\
        --out results/wrong-labels-few-images-h200.json
    python benchmarks/wrong_labels.py --data mini32 --per-class 60 --learners protonet \\
        --config benchmarks/wrong_labels_photos.toml --noise symmetric:0.4 pair:0.2 --updates 800 \\
        --variants clean random derts pretrained oracle --out results/wrong-labels-photos-cpu.json
    python benchmarks/wrong_labels.py --data mini-features --learners protonet --updates 1 \\
        --config benchmarks/wrong_labels_features.toml --variants cleaned cleanlab --out found.json
    python benchmarks/wrong_labels.py --quick --out out.json    # glyphs, about a minute on a CPU

Every learner, noise and seed is trained as these variants, all with the same seed:

clean      random tasks on the true labels
random     random tasks on the wrong labels; its model is the judge of what follows
best       the same, and of 20 evaluations on validation classes the weights that were best
long       random tasks for twice as many updates: as many as judge and fresh learner together
paper      the paper's rule
derts      the preset, which judges labels while training, within the same updates
pretrained the preset with --strategy.judge efficientnet-lite0 (needs derts[pretrained])
cleaned    random tasks on what `derts clean` leaves (judge and fresh learner: twice the updates)
cleanlab   the same with out-of-fold probabilities of a linear classifier on the judge's
           embedding, and images dropped by confident learning (needs scikit-learn)
oracle     random tasks without the images whose labels are wrong

Detection is scored on the training images alone, by the judge's embedding for both. Choices are
made with `--split val`. The file is written after each run; what it holds is not run again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import derts
from derts.config_file import PAPER, PRESETS, Values, apply_presets, read_config, with_values
from derts.data import open_data
from derts.data.table import Table
from derts.files import write_atomically
from derts.labels.cleaning import LabelChange, changes_by_trust
from derts.labels.judging import JudgedItems, judge_items
from derts.labels.known_errors import confusion_matrix, corrupt_labels, score_detection
from derts.models.pretrained import INSTALL, LITE0
from derts.provenance import code_version, machine
from derts.statistics import over_seeds
from derts.training.driver import Driver

Row = dict[str, Any]
VARIANTS = (
    "clean",
    "random",
    "best",
    "long",
    "paper",
    "derts",
    "pretrained",
    "cleaned",
    "cleanlab",
    "oracle",
)
NOISES = ["symmetric:0.2", "symmetric:0.4", "symmetric:0.6", "pair:0.2", "pair:0.4"]
STRATEGIES: dict[str, Values] = {
    "derts": PRESETS["derts"],
    "pretrained": {
        **PRESETS["derts"],
        "strategy": {**PRESETS["derts"]["strategy"], "judge": LITE0},
    },
    "paper": {"strategy": {**PAPER, "drop": "paper"}},
}
QUICK: Values = {
    "tasks": {"query": 5},
    "model": {"width": 16},
    "updates": 60,
    "meta_batch": 4,
    "evaluation": {"tasks": 60, "query": 5},
    "learner": {"distance_divisor": 4.0},
    "strategy": {"warmup": 20, "pool": 80},
}
FOLDS = 5


class Experiment:
    """Rows of one file: what is there is not run again."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.out = options, Path(options.out)
        self.rows: list[Row] = []
        self.detection: list[Row] = []
        if self.out.exists():
            held = json.loads(self.out.read_text(encoding="utf-8"))
            self.rows, self.detection = held["rows"], held["detection"]
            for row in self.rows:
                row.setdefault("code", held["code"])
        values: Values = {"evaluation": {"split": options.split}}
        base = apply_presets(options.preset)
        if options.config is not None:
            base = read_config(options.config, base)
        self.base = with_values(base, values, "benchmark")
        if options.quick:
            self.base = with_values(self.base, QUICK, "benchmark")
        if options.updates:
            self.base = replace(self.base, updates=options.updates)
        self.tables = dict(open_data(options.data))
        if options.per_class:
            self.tables["train"] = _first(self.tables["train"], options.per_class)
        self.device = "cpu"

    def save(self) -> None:
        about = {"code": code_version(), "machine": machine(self.device)}
        about |= {"data": Path(self.options.data).name, "per_class": self.options.per_class}
        content = {**about, "rows": self.rows, "detection": self.detection}
        write_atomically(self.out, (json.dumps(content, indent=1) + "\n").encode())

    def find(self, cell: Row, variant: str) -> Row | None:
        """The row of a variant; clean labels are the same for every noise."""
        keys = ("learner", "seed") if variant == "clean" else ("learner", "noise", "seed")
        for row in self.rows:
            if row["variant"] == variant and all(row[key] == cell[key] for key in keys):
                return row
        return None

    def train(self, cell: Row, variant: str, images: Table) -> derts.Trainer:
        """Train a variant on these training images, and keep its result."""
        values: Values = {"learner": {"name": cell["learner"]}, "seed": cell["seed"]}
        config = with_values(self.base, values, "benchmark")
        config = with_values(config, STRATEGIES.get(variant, {}), variant)
        if variant == "long":
            config = replace(config, updates=2 * config.updates)
        if variant == "best":
            config = replace(
                config,
                evaluation=replace(config.evaluation, weights="best"),
                validate_every=max(1, config.updates // 20),
            )
        trainer = derts.Trainer(config.resolved(), {**self.tables, "train": images})
        result = Driver(trainer).drive()
        seconds = round(sum(result["seconds"].values()), 1)
        of_judge = config.updates if variant in ("cleaned", "cleanlab") else 0
        row = {**cell, "variant": variant, "images": len(images), "seconds": seconds}
        row |= {
            "code": code_version(),
            "updates": config.updates,
            "updates_in_all": config.updates + of_judge,
        }
        told = "split", "accuracy", "interval", "notes", "weights_of_update"
        row |= {key: result[key] for key in told}
        row["phases"] = {name: round(spent, 2) for name, spent in result["seconds"].items()}
        self.rows.append(row)
        self.device = str(trainer.device)
        self.save()
        print(f"{_named(cell)} {variant}: {row['accuracy']:.2f}, {seconds:.0f} s", flush=True)
        return trainer

    def run_cell(self, cell: Row) -> None:
        """All variants of a learner, noise and seed."""
        true = self.tables["train"]
        noise, _, rate = cell["noise"].rpartition(":")
        confusion = confusion_matrix(noise, float(rate), true.class_names)
        wrong = replace(true, labels=corrupt_labels(true.labels, confusion, cell["seed"]))
        missing = [name for name in self.options.variants if self.find(cell, name) is None]
        judged = None
        if {"cleaned", "cleanlab"} & set(missing):  # which need the model of random
            self.rows = [row for row in self.rows if row is not self.find(cell, "random")]
            judge = self.train(cell, "random", wrong)
            judged = judge_items(judge.learner, {"train": wrong})
            missing = [name for name in missing if name != "random"]
        for variant in missing:
            images: Table | None = true if variant == "clean" else wrong
            if variant == "oracle":
                images = _subset(wrong, wrong.labels == true.labels, wrong.labels)
            elif variant in ("cleaned", "cleanlab") and judged is not None:
                images = self.cleaned(cell, variant, judged, true.labels)
            if images is not None:
                self.train(cell, variant, images)

    def cleaned(self, cell: Row, variant: str, judged: JudgedItems, true: Tensor) -> Table | None:
        """The training images as a way to find wrong labels leaves them; it is scored, too."""
        images = judged.tables["train"]
        wrong = images.labels != true
        if variant == "cleaned":
            score = score_detection(judged.trust.probability, wrong)
            estimated = score.estimated
            changes = changes_by_trust(judged)
        else:
            probabilities = out_of_fold(judged.features, images.labels)
            own = probabilities.gather(1, images.labels[:, None]).squeeze(1)
            issues = label_issues(probabilities, images.labels)
            score, estimated = score_detection(own, wrong), float(issues.double().mean())
            # below one half where there is an issue: dropped, but for what a class must keep
            right = torch.where(issues, 0.49 * own, 0.5 + 0.5 * own)
            trust = replace(judged.trust, probability=right.float())
            changes = changes_by_trust(replace(judged, trust=trust), "drop")
        kept, labels = _after(images, changes)
        found = {**cell, "variant": variant, **asdict(score), "estimated": estimated}
        at_rate = (judged.trust.probability if variant == "cleaned" else own).argsort(stable=True)
        first = at_rate[: max(1, round(estimated * len(wrong)))]
        found["precision_at_estimated_rate"] = float(wrong[first].double().mean())
        found["rate_error"] = abs(estimated - float(wrong.double().mean()))
        found["wrong_after"] = float((labels != true)[kept].double().mean())
        found["relabelled"] = sum(one.new_class is not None for one in changes)
        found["dropped"] = len(changes) - found["relabelled"]
        self.detection = [row for row in self.detection if not _same(row, cell, variant)]
        self.detection.append(found)
        print(
            f"{_named(cell)} {variant}: average precision {score.average_precision:.3f}, first "
            f"{score.first} {100 * score.precision:.0f}% wrong, rate {100 * estimated:.1f}%, "
            f"{100 * found['wrong_after']:.1f}% wrong afterwards",
            flush=True,
        )
        return _subset(images, kept, labels)


def out_of_fold(features: Tensor, labels: Tensor) -> Tensor:
    """float64 [n, C]: probabilities by a linear classifier that did not see the image."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold

    rows, given = features.numpy(), labels.numpy()
    rows = (rows - rows.mean(0)) / (rows.std(0) + 1e-6)
    found = np.zeros((len(rows), int(given.max()) + 1))
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(rows, given)
    for seen, unseen in folds:
        classifier = LogisticRegression(max_iter=200).fit(rows[seen], given[seen])
        found[np.ix_(unseen, classifier.classes_)] = classifier.predict_proba(rows[unseen])
    return torch.from_numpy(found)


def label_issues(probabilities: Tensor, labels: Tensor) -> Tensor:
    """bool [n]: confident learning (Northcutt et al., 2021), as cleanlab's filter of that name.

    A label is an issue where another class is the likeliest of those whose probability reaches the
    mean that images of this class have for it.
    """
    classes = probabilities.shape[1]
    own = probabilities.gather(1, labels[:, None]).squeeze(1)
    sums = torch.zeros(classes, dtype=own.dtype).index_add(0, labels, own)
    thresholds = sums / torch.bincount(labels, minlength=classes).clamp(min=1)
    confident = torch.where(probabilities >= thresholds, probabilities, -1.0)
    best = confident.max(1)
    return (best.values >= 0) & (best.indices != labels)


def _after(images: Table, changes: list[LabelChange]) -> tuple[Tensor, Tensor]:
    """Which images are kept, bool [n], and all labels [n] after the changes."""
    kept, labels = torch.ones(len(images), dtype=torch.bool), images.labels.clone()
    for one in changes:
        if one.new_class is None:
            kept[one.image] = False
        else:
            labels[one.image] = images.class_names.index(one.new_class)
    return kept, labels


def _subset(images: Table, kept: Tensor, labels: Tensor) -> Table:
    chosen = kept.nonzero().squeeze(1)
    return replace(images, items=images.gather(chosen), labels=labels[chosen])


def _first(images: Table, per_class: int) -> Table:
    """The first images of every class."""
    groups = [(images.labels == k).nonzero().squeeze(1) for k in range(len(images.class_names))]
    kept = torch.zeros(len(images), dtype=torch.bool)
    kept[torch.cat([group[:per_class] for group in groups])] = True
    return _subset(images, kept, images.labels)


def _same(row: Row, cell: Row, variant: str) -> bool:
    return row["variant"] == variant and all(row[key] == cell[key] for key in cell)


def _named(cell: Row) -> str:
    return f"{cell['learner']} {cell['noise']} seed {cell['seed']}"


def summary(experiment: Experiment, learner: str, noise: str, seeds: list[int]) -> list[str]:
    """A line per variant: accuracy, paired difference to random, share of the loss won back."""
    lines = []
    for variant in experiment.options.variants:
        cells = [{"learner": learner, "noise": noise, "seed": seed} for seed in seeds]
        found = [
            [row["accuracy"] for name in ("clean", "random", variant)
             if (row := experiment.find(cell, name)) is not None]
            for cell in cells
        ]  # fmt: skip
        complete = [row for row in found if len(row) == 3]
        if not complete:
            continue
        clean, random, ours = (list(column) for column in zip(*complete, strict=True))
        gained = over_seeds([mine - other for mine, other in zip(ours, random, strict=True)])
        lost = over_seeds(clean).mean - over_seeds(random).mean
        back = f", {100 * gained.mean / lost:.0f}% won back" if lost > 0 else ""
        lines.append(
            f"{learner} {noise} {variant}: {over_seeds(ours)}, {gained.shown('+')} against random"
            + (back if variant not in ("clean", "random") else "")
        )
    return lines


def main() -> None:
    """Run every cell, and print what came out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="")
    parser.add_argument("--preset", nargs="*", default=[])
    parser.add_argument("--config", type=Path, help="a TOML file of settings for all runs")
    parser.add_argument("--learners", nargs="+", default=[])
    parser.add_argument("--noise", nargs="+", default=[], help="KIND:RATE, as symmetric:0.4")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--updates", type=int, default=0, help="3000, or 60 with --quick")
    parser.add_argument("--per-class", type=int, default=0, help="train on so many (0: all)")
    parser.add_argument("--split", default="test")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    quick = options.quick
    options.data = options.data or ("glyphs-60x30" if quick else "glyphs")
    options.learners = options.learners or (["protonet"] if quick else ["anil", "protonet"])
    options.noise = options.noise or (["symmetric:0.4"] if quick else NOISES)
    options.seeds = options.seeds or ([0] if quick else [0, 1, 2])
    options.updates = options.updates or (0 if quick else 3000)
    if importlib.util.find_spec("sklearn") is None and "cleanlab" in options.variants:
        print("cleanlab is left out: scikit-learn is not installed (pip install scikit-learn)")
        options.variants = [name for name in options.variants if name != "cleanlab"]
    if importlib.util.find_spec("efficientnet_lite_pytorch") is None:
        print(f"pretrained is left out: {INSTALL}")
        options.variants = [name for name in options.variants if name != "pretrained"]
    experiment = Experiment(options)
    for noise in options.noise:
        for learner in options.learners:
            for seed in options.seeds:
                experiment.run_cell({"learner": learner, "noise": noise, "seed": seed})
            print("\n".join(summary(experiment, learner, noise, options.seeds)), flush=True)


if __name__ == "__main__":
    main()
