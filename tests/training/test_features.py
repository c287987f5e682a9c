"""Rows of features go wherever images go: every backbone, learner and strategy."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from derts.config import OptimiserConfig
from derts.data import FeatureTable, ImageTable, Table, glyphs
from derts.errors import DertsError
from derts.evaluation import Evaluation
from derts.models import FeatureBackbone
from derts.training import Trainer, train
from tests.tiny import tiny

STRATEGIES = ("random", "random-votes", "derts", "us", "ats", "gradmatch", "hardest", "easiest")


def topics(width: int = 24, each: int = 12, spread: float = 0.6) -> dict[str, Table]:
    """Classes around random centres, far from zero, as a matrix may be."""
    random = torch.Generator().manual_seed(0)
    tables: dict[str, Table] = {}
    for split, classes in (("train", 12), ("val", 6), ("test", 6)):
        labels = torch.arange(classes).repeat_interleave(each)
        centres = torch.randn(classes, width, generator=random)
        rows = centres[labels] + spread * torch.randn(len(labels), width, generator=random)
        names = tuple(f"{split} {number}" for number in range(classes))
        tables[split] = FeatureTable(0.01 * rows + 3, labels, names, split)
    return tables


@pytest.mark.parametrize("learner", ["protonet", "anil", "maml"])
@pytest.mark.parametrize("backbone", ["linear", "mlp", "none"])
def test_training_starts_from_the_features_and_does_not_spoil_them(
    backbone: str, learner: str
) -> None:
    changes = {"backbone": backbone}
    trainer = Trainer(tiny(model=changes, learner={"name": learner}, meta_batch=4), topics())
    before = trainer.evaluate("test").mean
    assert before > 60
    trainer.train()
    assert trainer.evaluate("test").mean > before - 5


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_chooses_tasks_of_features(strategy: str) -> None:
    learner, model = {"name": "anil"}, {"backbone": "linear"}
    config = tiny(model=model, learner=learner, strategy={"name": strategy}, updates=6)
    trainer = Trainer(config, topics())
    trainer.train()
    assert trainer.update == 6
    assert trainer.evaluate("test").mean > 60


@given(scale=st.floats(1e-3, 1e3), shift=st.floats(-10, 10))
@settings(max_examples=10, deadline=None)
def test_shift_and_scale_of_the_features_do_not_matter(scale: float, shift: float) -> None:
    table = topics()["train"]
    moved = FeatureTable(scale * (table.items - 3 + shift), table.labels, table.class_names)
    found = []
    for one in (table, moved):
        backbone = FeatureBackbone(24, "none")
        backbone.fit(one)
        found.append(backbone(one.items))
    assert torch.allclose(found[0], found[1], atol=0.05 * (1 + abs(shift)))


def test_wide_features_start_in_their_main_directions() -> None:
    random = torch.Generator().manual_seed(1)
    rows = torch.randn(200, 8, generator=random) @ torch.randn(8, 300, generator=random)
    backbone = FeatureBackbone(300, "linear", width=4)
    backbone.fit(FeatureTable(rows, torch.zeros(200, dtype=torch.long), ("a",)))
    kept = torch.cdist(*[backbone(rows)] * 2) / backbone.scale
    assert torch.allclose(kept, torch.cdist(rows, rows), rtol=1e-2, atol=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "cnn4 takes images, and this data is features: choose linear or mlp"),
        ({"model": {"backbone": "resnet12"}}, "resnet12 takes images"),
        ({"model": {"backbone": "mlp"}, "augment": {"horizontal_flip": True}}, "--augment is for"),
        ({"model": {"backbone": "mlp"}, "tasks": {"rotated": True}}, "cannot be rotated"),
    ],
)
def test_what_is_for_images_alone_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DertsError, match=message):
        Trainer(tiny(**changes), topics())


def test_a_backbone_for_features_refuses_images(letters: dict[str, ImageTable]) -> None:
    with pytest.raises(DertsError, match="mlp takes features, and this data is images: choose"):
        Trainer(tiny(model={"backbone": "mlp"}), letters)


def test_a_run_says_where_training_did_not_help() -> None:
    config = tiny(model={"backbone": "linear"}, optimiser=OptimiserConfig(lr=1e-9), updates=6)
    (note,) = train(config, tables=topics())["notes"]
    assert "training did not make it better (" in note


def test_what_training_gained_is_over_the_features_as_they_are() -> None:
    tables = topics(spread=3.0)
    trainer = Trainer(tiny(model={"backbone": "none"}), tables)
    found = trainer.evaluate("test")
    assert f"reach {found.mean:.2f}%" in trainer.gain(found)
    perfect = Evaluation((100.0,) * len(found.accuracies), "test")
    assert "training made it better (+" in trainer.gain(perfect)
    assert not Trainer(tiny(), glyphs(characters=60, images_per_character=12)).gain(found)
