"""Every setting of a run: frozen dataclasses with a line of help under each field."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from derts.config_limits import check_together, ranges
from derts.errors import DertsError

Precision = Literal["float32", "bfloat16"]


class KnownGood(NamedTuple):
    """Values that work for a learner."""

    inner_lr: float
    feature_scale: float
    lr: float
    smoothing: float


KNOWN_GOOD = {
    "protonet": KnownGood(inner_lr=0.0, feature_scale=1.0, lr=0.004, smoothing=0.0),
    "anil": KnownGood(inner_lr=0.5, feature_scale=0.1, lr=0.005, smoothing=0.5),
    "maml": KnownGood(inner_lr=0.1, feature_scale=0.3, lr=0.001, smoothing=0.0),
}


@dataclass(frozen=True)
class TaskConfig:
    """The few-shot tasks that training draws."""

    way: int = 5
    """Classes per task."""
    shot: int = 5
    """Support images per class."""
    query: int = 15
    """Query images per class."""
    noise: Literal["none", "swap", "tasks"] = "none"
    """Label noise in training tasks: swap (the paper's) or tasks (some tasks heavily)."""
    swap_rate: float = 3.02
    """swap: Poisson rate per class (3.02 mislabels 25%, 5.62 mislabels 40% of 20 per class)."""
    swap_limit: int = 10
    """swap: at most so many swaps per class."""
    noisy_fraction: float = 0.6
    """tasks: share of tasks that are corrupted."""
    flip: float = 0.8
    """tasks: probability that a label of a corrupted task is wrong."""
    classes: tuple[str, ...] = ()
    """Train on these classes only (default: all)."""
    class_budget: Literal[0, 16, 32] = 0
    """Train on the paper's list of 16 or 32 mini-ImageNet classes (0: all)."""
    turned: bool = False
    """Every class is four: its images upright and turned by 90, 180 and 270 degrees."""


@dataclass(frozen=True)
class AugmentConfig:
    """How training images are changed each time that an update sees them."""

    mirror: bool = False
    """Left and right change places in half of them."""
    shift: int = 0
    """Moved by at most so many pixels each way; edges are filled by reflection."""

    @property
    def active(self) -> bool:
        """Whether anything is changed."""
        return self.mirror or self.shift > 0


@dataclass(frozen=True)
class ModelConfig:
    """The backbone."""

    backbone: Literal["cnn4", "resnet12"] = "cnn4"
    """Which network turns images into features."""
    width: int = 64
    """Filters of the first block (cnn4: of all four; resnet12: doubled in each block)."""
    drop_block: float = 0.0
    """resnet12: share of activations that DropBlock drops in the last two blocks."""
    batch_norm: Literal["shared", "task"] = "shared"
    """Training statistics over the whole meta-batch, or over each task (MAML: always task)."""


@dataclass(frozen=True)
class LearnerConfig:
    """The meta-learner."""

    name: Literal["protonet", "anil", "maml"] = "protonet"
    """ProtoNet (prototypes), ANIL (adapts the head) or MAML (adapts everything)."""
    inner_steps: int = 3
    """anil, maml: gradient steps on the support set."""
    inner_lr: float | None = None
    """anil, maml: learning rate of those steps (default: what is known to work for the learner)."""
    feature_scale: float | None = None
    """anil, maml: features are multiplied by this before the head (default: likewise)."""
    distance_divisor: float = 64.0
    """protonet: squared distances are divided by this."""
    first_order: bool = False
    """anil, maml: ignore second derivatives."""
    smoothing: float | None = None
    """Share of a query image's target that is spread over all classes in the outer loss (default:
    what is known to work for the learner)."""

    def resolved(self) -> LearnerConfig:
        """The same with every default that depends on the learner filled in."""
        known = KNOWN_GOOD[self.name]
        inner_lr = known.inner_lr if self.inner_lr is None else self.inner_lr
        scale = known.feature_scale if self.feature_scale is None else self.feature_scale
        smoothing = known.smoothing if self.smoothing is None else self.smoothing
        return replace(self, inner_lr=inner_lr, feature_scale=scale, smoothing=smoothing)


@dataclass(frozen=True)
class StrategyConfig:
    """Which tasks are trained on."""

    name: Literal["random", "derts", "us", "ats", "gradmatch", "hardest", "easiest"] = "random"
    """random: uniform tasks; derts: a weighted subset of a pool, without the noisy ones; us:
    uniform over difficulty; ats: a learned scheduler (sees validation classes); gradmatch,
    hardest, easiest: other choices from a pool."""
    warmup: int = 100
    """Updates with random tasks before the strategy begins (they count as updates)."""
    pool: int = 3200
    """derts: tasks that are drawn and scored per round."""
    pool_images: int = 9600
    """Different images that a pool is drawn from, enough of every class for a task: fewer to embed
    per round (0: all there are)."""
    bank: bool = False
    """Score pools by features that the last round's updates left, embedding only other images."""
    ratio: float = 0.3
    """derts: share of the pool that is selected."""
    estimate: Literal["logit-theta", "logit", "last-layer", "feature", "error-profile"] = "logit"
    """derts: what stands for a task's gradient (docs/estimates.md)."""
    engine: Literal["greedy", "lazy", "stochastic", "uniform", "hardest", "confused"] = "greedy"
    """derts: facility location, exact, lazy or stochastic; or tasks at random, the hardest, or
    those with the classes that the model confuses most."""
    epsilon: float = 0.01
    """derts, stochastic: smaller looks at more candidates."""
    weights: Literal["counts", "none", "calibrated"] = "calibrated"
    """derts: pool tasks that a selected one stands for, all alike, or fitted to the pool."""
    weight_cap: float = 0.0
    """derts: largest weight as a multiple of the mean (0: no limit)."""
    batching: Literal["shuffled", "coreset"] = "shuffled"
    """derts: batches from the whole selection, or each selected from its own part of the pool."""
    drop_score: Literal["none", "norm", "loss", "error"] = "loss"
    """derts: what makes a task look noisy: its estimate's norm, query loss or query error."""
    drop_rule: Literal["multiple", "quantile", "automatic"] = "automatic"
    """derts: drop above a multiple of the mean, the largest share, or by a two-part split."""
    drop_value: float = 1.25
    """derts: the multiple, or the share to drop."""
    doubt: Literal["none", "votes", "query-votes", "posterior"] = "votes"
    """Labels inside tasks: as given; as most of the tasks that an image is in have it; or, for
    query images, what is probable by the given label and the model."""
    drop_when: Literal["before", "after"] = "before"
    """derts: drop noisy tasks before or after selecting."""
    selects: Literal["where-it-pays", "always"] = "where-it-pays"
    """derts: select from pools with labels to mend, tasks to drop or tasks that repeat each other,
    balance classes that are in many more tasks than others, and train on random tasks otherwise;
    or select from every pool."""

    def images_of(self, count: int) -> int:
        """How many of `count` images a pool is drawn from (0: all)."""
        return self.pool_images if self.pool_images < count else 0


@dataclass(frozen=True)
class OptimiserConfig:
    """The outer loop's optimiser: Adam."""

    lr: float | None = None
    """Learning rate at the start (default: what is known to work for the learner)."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Decay to zero over the run, or none."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    clip: float = 0.0
    """Largest norm of the outer gradient (0: no limit)."""


@dataclass(frozen=True)
class HardwareConfig:
    """Where and how the arithmetic runs."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps, …"""
    precision: Precision = "float32"
    """Arithmetic of the backbone; the learner's head is always float32."""
    channels_last: bool = True
    """Memory format of images and filters (faster on CPU and GPU)."""
    compile: bool = False
    """torch.compile the backbone: pays off after about a minute of training on a GPU."""
    fused: bool = True
    """Use hand-written kernels where they can run (NVIDIA GPU, bfloat16) instead of compiling."""
    image_memory_gib: float = 0.0
    """Memory of the device for training images; larger data is streamed (0: half of what is
    free on a GPU, no limit elsewhere)."""
    threads: int = 0
    """CPU threads (0: leave as torch chooses)."""


@dataclass(frozen=True)
class EvaluationConfig:
    """The fixed test tasks."""

    tasks: int = 600
    """How many tasks."""
    query: int = 15
    """Query images per class."""
    seed: int = 12345
    """Makes the same tasks for every run that is to be compared."""
    split: str = "test"
    """Which split of the data the final evaluation uses."""
    weights: Literal["last", "best"] = "last"
    """Judge a run by its last weights, or by those after the warm-up that were best on validation
    classes, looked at every --validate-every updates."""


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
    updates: int = 1000
    """Optimiser steps."""
    meta_batch: int = 32
    """Tasks per update."""
    seed: int = 0
    """Decides initialisation, task order and everything else that is random."""
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    validate_every: int = 0
    """Evaluate on validation classes every so many updates (0: never)."""
    log_every: int = 10
    """Write one event per so many updates."""
    checkpoint_every: int = 200
    """Write a checkpoint every so many updates (one is always written at the end)."""

    def __post_init__(self) -> None:
        for name, value, least, most in ranges(self):
            # written so that nan, which compares as false, is refused too
            if value is not None and not least <= value <= most:
                raise DertsError(f"--{name} is {value}: it must be between {least:g} and {most:g}")

    def resolved(self) -> TrainConfig:
        """The same with every default that depends on the learner filled in.

        Settings that do not go together are refused.

        >>> config = TrainConfig(learner=LearnerConfig("anil")).resolved()
        >>> config.optimiser.lr, config.learner.inner_lr
        (0.005, 0.5)
        """
        check_together(self)
        lr = KNOWN_GOOD[self.learner.name].lr if self.optimiser.lr is None else self.optimiser.lr
        return replace(
            self, learner=self.learner.resolved(), optimiser=replace(self.optimiser, lr=lr)
        )
