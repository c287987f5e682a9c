"""How ANIL's head starts, and what an estimate before adaptation can tell by it."""

import pytest
import torch

from derts import LearnerConfig, ModelConfig, TaskPool, build_learner, glyphs
from derts.config_file import apply_presets
from derts.gradients import estimate_gradients
from derts.learners import ANIL


def norm_before_adaptation(head: str, seed: int = 0) -> tuple[float, torch.Tensor]:
    table = glyphs(characters=40, images_per_character=8)["train"]
    learner = build_learner(
        LearnerConfig("anil", head=head),  # type: ignore[arg-type]
        ModelConfig(width=8), way=5, item_shape=table.item_shape, seed=seed,
    )  # fmt: skip
    assert isinstance(learner, ANIL)
    pool = TaskPool.sample(table, tasks=8, way=5, shot=2, query=3, seed=0)
    rows = estimate_gradients(learner, table, pool, "logit-theta")
    return float(rows.norm(dim=1).mean()), learner.head_weight.detach()


def test_a_head_at_zero_tells_nothing_and_a_random_one_something() -> None:
    assert norm_before_adaptation("zeros")[0] < 1e-4
    norm, weight = norm_before_adaptation("random")
    assert norm > 1e-2
    assert 0 < weight.abs().max() <= 8**-0.5
    assert torch.equal(weight, norm_before_adaptation("random")[1])
    assert not torch.equal(weight, norm_before_adaptation("random", seed=1)[1])


@pytest.mark.parametrize("preset", ["paper", "paper-noisy"])
def test_the_papers_preset_starts_the_head_as_usual(preset: str) -> None:
    assert apply_presets([preset]).learner.head == "random"
    assert apply_presets([]).learner.head == "zeros"
