"""What settings may be: the range of every number, and what does not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from derts.errors import DertsError

if TYPE_CHECKING:
    from derts.config import TrainConfig

MANY = 10**9


def ranges(config: TrainConfig) -> tuple[tuple[str, float | None, float, float], ...]:
    """Every number's name, value, least and largest value."""
    tasks, learner, strategy = config.tasks, config.learner, config.strategy
    optimiser, evaluation = config.optimiser, config.evaluation
    return (
        ("updates", config.updates, 1, MANY),
        ("meta-batch", config.meta_batch, 1, MANY),
        ("seed", config.seed, 0, 2**63 - 1),
        ("log-every", config.log_every, 1, MANY),
        ("checkpoint-every", config.checkpoint_every, 1, MANY),
        ("validate-every", config.validate_every, 0, MANY),
        ("tasks.way", tasks.way, 2, MANY),
        ("tasks.shot", tasks.shot, 1, MANY),
        ("tasks.query", tasks.query, 1, MANY),
        ("tasks.swap-rate", tasks.swap_rate, 0, 1e4),
        ("tasks.swap-limit", tasks.swap_limit, 0, 1e4),
        ("tasks.noisy-fraction", tasks.noisy_fraction, 0, 1),
        ("tasks.flip", tasks.flip, 0, 1),
        ("augment.shift", config.augment.shift, 0, 1e4),
        ("model.width", config.model.width, 1, 1e5),
        ("model.drop-block", config.model.drop_block, 0, 0.9),
        ("learner.inner-steps", learner.inner_steps, 0, 1000),
        ("learner.inner-lr", learner.inner_lr, 0, 1e4),
        ("learner.feature-scale", learner.feature_scale, 1e-9, 1e9),
        ("learner.distance-divisor", learner.distance_divisor, 1e-9, 1e9),
        ("learner.smoothing", learner.smoothing, 0, 0.99),
        ("optimiser.lr", optimiser.lr, 1e-12, 1e4),
        ("optimiser.weight-decay", optimiser.weight_decay, 0, 1e4),
        ("optimiser.clip", optimiser.clip, 0, 1e12),
        ("hardware.image-memory-gib", config.hardware.image_memory_gib, 0, 1e6),
        ("hardware.threads", config.hardware.threads, 0, 4096),
        ("evaluation.tasks", evaluation.tasks, 2, MANY),
        ("evaluation.query", evaluation.query, 1, MANY),
        ("evaluation.seed", evaluation.seed, 0, 2**63 - 1),
        ("strategy.warmup", strategy.warmup, 0, MANY),
        ("strategy.pool", strategy.pool, 1, MANY),
        ("strategy.pool-images", strategy.pool_images, 0, MANY),
        ("strategy.ratio", strategy.ratio, 1e-6, 1),
        ("strategy.epsilon", strategy.epsilon, 1e-9, 0.999),
        ("strategy.weight-cap", strategy.weight_cap, 0, 1e9),
        ("strategy.drop-value", strategy.drop_value, 0, 1e9),
    )


def check_together(config: TrainConfig) -> None:
    """Refuse settings that contradict each other."""
    if config.strategy.bank and config.augment.active:
        raise DertsError(
            "--strategy.bank keeps what updates make of images, which --augment.mirror and "
            "--augment.shift change every time: leave out one or the other"
        )
    if config.evaluation.weights == "best" and not config.validate_every:
        raise DertsError(
            "--evaluation.weights best needs --validate-every: say after how many updates to "
            "look at validation classes"
        )
