"""Wrong labels of the data set are found by the half of the images that did not train on them."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from derts.config import ModelConfig, TaskConfig, TrainConfig
from derts.data import glyphs
from derts.data.table import FeatureTable
from derts.errors import DertsError
from derts.training.driver import Driver
from derts.training.label_stages import MANY_WRONG
from derts.training.result import summarise
from derts.training.trainer import Trainer
from tests.tiny import tiny

CLASSES, EACH = 10, 60
TRUE = torch.arange(CLASSES).repeat_interleave(EACH)
Events = list[dict[str, Any]]


def table(labels: Tensor, split: str = "train") -> FeatureTable:
    random = torch.Generator().manual_seed(len(split))
    rows = 3 * torch.randn(CLASSES, 16, generator=random)[TRUE]
    rows = rows + torch.randn(len(TRUE), 16, generator=random)
    return FeatureTable(rows, labels, tuple(f"class {k}" for k in range(CLASSES)), split)


def wrong_labels(share: float = 0.4) -> Tensor:
    random = torch.Generator().manual_seed(5)
    wrong = torch.rand(len(TRUE), generator=random) < share
    other = (TRUE + torch.randint(1, CLASSES, TRUE.shape, generator=random)) % CLASSES
    return torch.where(wrong, other, TRUE)


def config(**changes: Any) -> TrainConfig:
    strategy = {"name": "derts", "warmup": 1000, "pool": 8}
    tasks = TaskConfig(way=3, shot=2, query=3)
    model = ModelConfig(backbone="mlp", width=16)
    return tiny(**{"tasks": tasks, "model": model, "updates": 200, "strategy": strategy} | changes)


def trainer(labels: Tensor, **changes: Any) -> Trainer:
    return Trainer(config(**changes), {"train": table(labels), "test": table(TRUE, "test")})


def trained(labels: Tensor, **changes: Any) -> tuple[Trainer, Events]:
    driver = Driver(trainer(labels, **changes))
    driver.drive()
    return driver.trainer, driver.events()


@pytest.fixture(scope="module")
def noisy() -> tuple[Trainer, Events]:
    return trained(wrong_labels())


def test_wrong_labels_are_left_out_or_corrected(noisy: tuple[Trainer, Events]) -> None:
    found, events = noisy
    stages = found.stages
    assert stages is not None
    used = stages.labels >= 0
    before = float((stages.given != TRUE).double().mean())
    after = float((stages.labels != TRUE)[used].double().mean())
    assert before > 0.3
    assert after < 0.1
    right = stages.given == TRUE
    assert float((stages.labels == TRUE)[right].double().mean()) > 0.8  # few right ones are lost
    assert int(torch.bincount(stages.labels[used], minlength=CLASSES).min()) >= 5
    told = [event for event in events if event["event"] == "labels"]
    assert [event["stage"] for event in told] == ["second half", "all"]
    assert told[0]["restarted"]
    assert abs(told[-1]["looks_wrong"] - before) < 0.15
    assert told[-1]["left_out"] == int((~used).sum())


def test_the_result_and_a_note_tell_it(noisy: tuple[Trainer, Events]) -> None:
    result = summarise(noisy[1], 0, 200)
    assert [event["stage"] for event in result["labels"]] == ["second half", "all"]
    assert "of the training labels look wrong" in result["notes"][0]
    assert noisy[0].clock.seconds["labels"] > 0


def test_only_the_first_half_is_drawn_at_first_and_only_what_is_trusted_at_the_end(
    noisy: tuple[Trainer, Events],
) -> None:
    start = trainer(wrong_labels())
    assert start.stages is not None
    pool = start.draw(40, "pool", 0)
    drawn = torch.cat((pool.support, pool.query), 1).unique()
    assert not bool(start.stages.second[drawn].any())
    found, _ = noisy
    assert found.stages is not None
    pool = found.draw(40, "pool", 0)
    drawn = torch.cat((pool.support, pool.query), 1).unique()
    assert bool((found.stages.labels[drawn] >= 0).all())
    assert pool.classes is not None
    label = pool.classes.gather(1, pool.query_labels)
    assert torch.equal(label, found.stages.labels[pool.query])


def test_clean_labels_are_all_used_and_nothing_starts_again() -> None:
    found, events = trained(TRUE)
    stages = found.stages
    assert stages is not None
    (told,) = [event for event in events if event["event"] == "labels"]
    assert told["stage"] == "all"
    assert not told["restarted"]
    assert told["looks_wrong"] < MANY_WRONG
    assert stages.began == 0
    assert torch.equal(stages.labels, TRUE)
    assert 10 <= told["update"] <= 20  # 5 to 10% of the run


def test_the_learning_rate_begins_again_with_the_learner(noisy: tuple[Trainer, Events]) -> None:
    found = noisy[0]
    stages = found.stages
    assert stages is not None
    found.update, end = stages.began, found.update
    try:
        assert found.learning_rate() == found.config.optimiser.lr
    finally:
        found.update = end
    assert abs(found.learning_rate()) < 1e-9


@pytest.mark.parametrize("stop", [8, 15])
def test_a_run_goes_on_from_any_stage(noisy: tuple[Trainer, Events], stop: int) -> None:
    first = trainer(wrong_labels())
    first.train(stop)
    state = first.state_dict()
    second = trainer(wrong_labels())
    second.load_state_dict(state)
    second.train()
    assert second.stages is not None
    assert noisy[0].stages is not None
    assert torch.equal(second.stages.labels, noisy[0].stages.labels)
    expected = noisy[0].learner.state_dict()
    for name, value in second.learner.state_dict().items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"updates": 50}, "50 updates teach too little"),
        ({"tasks": TaskConfig(way=3, shot=5, query=30)}, "0 classes have 70 images"),
        ({"tasks": TaskConfig(way=3, shot=2, query=3, noise="swap")}, "tasks are labelled anew"),
    ],
)
def test_where_labels_cannot_be_judged_the_run_says_so(changes: Any, said: str) -> None:
    found = trainer(TRUE, **changes)
    events: Events = []
    found.log = events.append
    found.train(1)
    assert found.stages is None
    (note,) = [event["text"] for event in events if event["event"] == "note"]
    assert said in note


def test_a_small_class_is_judged_before_it_is_trained_on() -> None:
    given = wrong_labels()
    small = (given == 3).nonzero().squeeze(1)
    given[small[8:]] = 4  # which has wrong ones now
    found, _ = trained(given)
    stages = found.stages
    assert stages is not None
    assert bool(stages.second[small[:8]].all())
    assert int((stages.labels == 3).sum()) >= 5


def test_other_strategies_and_the_switch_train_on_everything() -> None:
    assert trainer(TRUE, strategy={"name": "random"}).stages is None
    assert trainer(TRUE, strategy={"name": "derts", "pool": 8, "judge": "none"}).stages is None


def test_features_judge_before_the_first_update_and_a_run_goes_on() -> None:
    judged = {"strategy": {"name": "derts", "pool": 8, "judge": "features"}, "updates": 20}
    found, events = trained(wrong_labels(), **judged)
    assert found.stages is not None
    (told,) = [event for event in events if event["event"] == "labels"]
    assert (told["update"], told["stage"], told["restarted"]) == (0, "all", False)
    used = found.stages.labels
    assert float((used != TRUE)[used >= 0].float().mean()) < 0.05
    assert found.learning_rate() < 1e-4  # it fell from the first update on
    first, second = trainer(wrong_labels(), **judged), trainer(wrong_labels(), **judged)
    first.train(7)
    second.load_state_dict(first.state_dict())
    second.train()
    for name, value in second.learner.state_dict().items():
        assert torch.equal(value, found.learner.state_dict()[name]), name


def test_a_judge_of_images_or_features_is_refused_on_the_other() -> None:
    with pytest.raises(DertsError, match="takes images, and this data is features"):
        trainer(TRUE, strategy={"name": "derts", "judge": "efficientnet-lite0"})
    photos = glyphs(characters=12, images_per_character=12)
    with pytest.raises(DertsError, match="is for features, and this data is images"):
        Trainer(tiny(strategy={"name": "derts", "judge": "features"}), photos)


def test_pretrained_features_judge_images() -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    photos = glyphs(characters=12, images_per_character=12)
    found = Trainer(tiny(strategy={"name": "derts", "judge": "efficientnet-lite0"}), photos)
    found.train(1)
    assert found.stages is not None
    assert (found.stages.stage, found.stages.network) == ("all", None)


@pytest.mark.parametrize(
    ("wrong", "left", "stage"),
    [
        (0.4, 0.21, "all"),
        (0.4, 0.19, "second half"),
        (0.71, 0.2, "all"),
        (0.69, 0.2, "second half"),
    ],
)
def test_where_most_wrong_labels_would_stay_nothing_starts_again(
    wrong: float, left: float, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = trainer(wrong_labels())
    events: Events = []
    found.log = events.append
    stages = found.stages
    assert stages is not None

    def judge(half: torch.Tensor) -> float:
        stages.labels[half] = stages.given[half]
        return wrong

    monkeypatch.setattr(stages, "_judge", judge)
    stages.wrong_after = left
    stages._end_first(20)
    assert stages.stage == stage
    told = [event["text"] for event in events if event["event"] == "note"]
    assert bool(told) == (stage == "all") == torch.equal(stages.labels, stages.given)
    assert all("this judge cannot tell which" in text for text in told)


def test_named_classes_alone_are_judged() -> None:
    tasks = replace(config().tasks, classes=tuple(f"class {k}" for k in range(4)))
    found, _ = trained(wrong_labels(), tasks=tasks)
    assert found.stages is not None
    assert set(found.stages.labels.tolist()) <= {-1, 0, 1, 2, 3}
