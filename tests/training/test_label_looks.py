"""Wrong labels of the data set are found by looks of the learner, or of features, and left out."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from derts.config import ModelConfig, TaskConfig, TrainConfig
from derts.data import glyphs
from derts.data.table import FeatureTable
from derts.errors import DertsError
from derts.labels.judging import judge
from derts.progress import silent
from derts.training import label_looks
from derts.training.driver import Driver
from derts.training.label_looks import MANY_WRONG
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
    looks = found.looks
    assert looks is not None
    used = looks.labels >= 0
    before = float((looks.given != TRUE).double().mean())
    after = float((looks.labels != TRUE)[used].double().mean())
    assert before > 0.3
    assert after < 0.5 * before
    right = looks.given == TRUE
    assert float((looks.labels == TRUE)[right].double().mean()) > 0.8  # few right ones are lost
    assert int(torch.bincount(looks.labels[used], minlength=CLASSES).min()) >= 5
    told = [event for event in events if event["event"] == "labels"]
    assert [event["update"] for event in told] == [10, 30, 60, 100]
    assert abs(told[0]["looks_wrong"] - before) < 0.15
    assert told[-1]["left_out"] == int((~used).sum())


def test_images_count_by_trust(noisy: tuple[Trainer, Events]) -> None:
    found, _ = noisy
    looks = found.looks
    assert looks is not None
    assert looks.trust is not None
    used, right = looks.labels >= 0, looks.given == TRUE
    assert float(looks.trust.min()) >= 0.05
    assert float(looks.trust[used].min()) >= 0.35  # no class lacked images
    assert float(looks.trust[right].mean()) > float(looks.trust[~right].mean()) + 0.4
    pool = found.drawer.augmented(found.draw(40, "pool", 0), 0)
    assert pool.trust is not None
    assert torch.equal(pool.trust, looks.trust[torch.cat((pool.support, pool.query), 1)])
    clean, _ = trained(TRUE)
    assert clean.looks is not None
    assert clean.looks.trust is None


def test_images_of_other_learners_count_alike() -> None:
    anil, _ = trained(wrong_labels(), learner={"name": "anil"})
    looks = anil.looks
    assert looks is not None
    assert looks.changed
    assert looks.trust is None
    assert anil.drawer.augmented(anil.draw(4, "pool", 0), 0).trust is None


def test_the_result_and_a_note_tell_it(noisy: tuple[Trainer, Events]) -> None:
    result = summarise(noisy[1], 0, 200)
    assert [event["look"] for event in result["labels"]] == [1, 2, 3, 4]
    note, gained = result["notes"]
    assert "class means without training reach" in gained
    assert "of the training labels look wrong" in note
    assert noisy[0].clock.seconds["labels"] > 0


def test_only_what_is_trusted_is_drawn(noisy: tuple[Trainer, Events]) -> None:
    found, _ = noisy
    assert found.looks is not None
    pool = found.draw(40, "pool", 0)
    drawn = torch.cat((pool.support, pool.query), 1).unique()
    assert bool((found.looks.labels[drawn] >= 0).all())
    assert pool.classes is not None
    label = pool.classes.gather(1, pool.query_labels)
    assert torch.equal(label, found.looks.labels[pool.query])


def test_a_look_begins_a_new_round_and_no_pool_is_drawn_twice() -> None:
    strategy = {"name": "derts", "warmup": 0, "pool": 40, "select": "greedy"}
    _, events = trained(wrong_labels(), strategy=strategy)
    rounds = [event for event in events if event["event"] == "round"]
    assert [event["round"] for event in rounds] == [*range(len(rounds))]
    assert {0, 10, 30, 60, 100} <= {event["update"] for event in rounds}
    notes = [event["text"] for event in events if event["event"] == "note"]
    assert sum("no votes" in text for text in notes) <= 1


@pytest.mark.parametrize("stop", [30, 32, 33])
def test_a_run_goes_on_in_a_round_after_a_look(stop: int) -> None:
    strategy = {"name": "derts", "warmup": 0, "pool": 40, "select": "greedy"}
    whole, first, second = (trainer(wrong_labels(), strategy=strategy) for _ in range(3))
    whole.train(50)
    first.train(stop)
    second.load_state_dict(first.state_dict())
    second.train(50)
    expected = whole.learner.state_dict()
    for name, value in second.learner.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_clean_labels_are_all_used() -> None:
    found, events = trained(TRUE)
    assert found.looks is not None
    told = [event for event in events if event["event"] == "labels"]
    assert len(told) == 4
    assert all(event["looks_wrong"] < MANY_WRONG for event in told)
    assert all(event["left_out"] == event["relabelled"] == 0 for event in told)
    assert torch.equal(found.looks.labels, TRUE)
    never = trainer(TRUE, strategy={"name": "random"})  # the same tasks as without a judge
    for purpose, number in (("batch", 150), ("pool", 1)):
        ours, theirs = found.draw(4, purpose, number), never.draw(4, purpose, number)
        assert torch.equal(ours.query, theirs.query)
    (gained,) = summarise(events, 0, 200)["notes"]  # and none of labels
    assert "class means without training reach" in gained


@pytest.mark.parametrize("stop", [8, 10, 35])
def test_a_run_goes_on_from_any_stage(noisy: tuple[Trainer, Events], stop: int) -> None:
    first = trainer(wrong_labels())
    first.train(stop)
    state = first.state_dict()
    second = trainer(wrong_labels())
    second.load_state_dict(state)
    second.train()
    assert second.looks is not None
    assert noisy[0].looks is not None
    assert torch.equal(second.looks.labels, noisy[0].looks.labels)
    expected = noisy[0].learner.state_dict()
    for name, value in second.learner.state_dict().items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"updates": 50}, "50 updates teach too little"),
        ({"tasks": TaskConfig(way=3, shot=2, query=3, noise="swap")}, "tasks are labelled anew"),
    ],
)
def test_where_labels_cannot_be_judged_the_run_says_so(changes: Any, said: str) -> None:
    found = trainer(TRUE, **changes)
    events: Events = []
    found.log = events.append
    found.train(1)
    assert found.looks is None
    (note,) = [event["text"] for event in events if event["event"] == "note"]
    assert said in note


def test_other_strategies_and_the_switch_train_on_everything() -> None:
    assert trainer(TRUE, strategy={"name": "random"}).looks is None
    assert trainer(TRUE, strategy={"name": "derts", "pool": 8, "judge": "none"}).looks is None


def test_features_judge_before_the_first_update_and_a_run_goes_on() -> None:
    judged = {"strategy": {"name": "derts", "pool": 8, "judge": "features"}, "updates": 20}
    found, events = trained(wrong_labels(), **judged)
    assert found.looks is not None
    (told,) = [event for event in events if event["event"] == "labels"]
    assert (told["update"], told["look"]) == (0, 1)
    used = found.looks.labels
    assert float((used != TRUE)[used >= 0].float().mean()) < 0.05
    assert found.learning_rate() < 1e-4  # it fell from the first update on
    first, second = trainer(wrong_labels(), **judged), trainer(wrong_labels(), **judged)
    first.train(7)
    second.load_state_dict(first.state_dict())
    second.train()
    for name, value in second.learner.state_dict().items():
        assert torch.equal(value, found.learner.state_dict()[name]), name


def test_features_leave_out_a_few_wrong_labels_too() -> None:
    judged = {"strategy": {"name": "derts", "pool": 8, "judge": "features"}, "updates": 20}
    given = wrong_labels(0.08)
    found, events = trained(given, **judged)
    assert found.looks is not None
    assert 0 < found.looks.wrong < 0.15
    used = found.looks.labels
    assert int((used != TRUE)[used >= 0].sum()) < 0.3 * int((given != TRUE).sum())
    assert any("look wrong" in note for note in summarise(events, 0, 20)["notes"])


def test_a_judge_of_images_or_features_is_refused_on_the_other() -> None:
    with pytest.raises(DertsError, match="takes images, and this data is features"):
        trainer(TRUE, strategy={"name": "derts", "judge": "efficientnet-lite0"})
    photos = glyphs(characters=12, images_per_character=12)
    with pytest.raises(DertsError, match="is for features, and this data is images"):
        Trainer(tiny(strategy={"name": "derts", "judge": "features"}), photos)
    misspelt = {"name": "derts", "judge": "efficient-net"}
    with pytest.raises(DertsError, match="choose one of learner, efficientnet-lite0, features"):
        tiny(strategy=misspelt).resolved()


def test_pretrained_features_judge_images() -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    photos = glyphs(characters=12, images_per_character=12)
    found = Trainer(tiny(strategy={"name": "derts", "judge": "efficientnet-lite0"}), photos)
    found.train(1)
    assert found.looks is not None
    assert (found.looks.done, found.looks.network) == (1, None)


@pytest.mark.parametrize("weak_features", [False, True])
@pytest.mark.parametrize(
    ("wrong", "pairs", "used"),
    [(0.06, 0, 600), (0.06, 9, 5), (0.08, 0, 5), (0.69, 9, 5), (0.71, 0, 600), (0.71, 9, 600)],
)
def test_a_judge_that_suspects_few_or_most_changes_nothing_but_for_pairs(
    wrong: float, pairs: int, used: int, weak_features: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = trainer(wrong_labels())
    events: Events = []
    found.log = events.append
    looks = found.looks
    assert looks is not None

    class Told:
        share_wrong, confused, probability = wrong, pairs, torch.full((len(TRUE),), 0.5)
        weak, sees = weak_features, 0.3

        def kept(self, fewest: int, sure: float, least: float) -> Tensor:
            labels = torch.full((len(TRUE),), -1)
            labels[:fewest] = 0
            return labels

    monkeypatch.setattr(label_looks, "judge", lambda *_: Told())
    for update in looks.updates:
        looks.look(update, silent)
    assert int((looks.labels >= 0).sum()) == used
    told = [event["text"] for event in events if event["event"] == "note"]
    suspected = wrong > MANY_WRONG or pairs > 0
    assert bool(told) == (suspected or weak_features)
    assert all(("cannot tell which" in text) == (suspected and used == 600) for text in told)
    assert all(("would find only about 30%" in text) == (not suspected) for text in told)


def test_a_learner_that_sees_less_and_less_brings_nothing_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = trainer(wrong_labels())
    looks = found.looks
    assert looks is not None
    looks.look(10, silent)
    left_out = looks.labels < 0
    assert bool(left_out.any())

    def overfitted(*given: Any) -> Any:
        """What was trained on looks right, the rest as before."""
        trust = judge(*given)
        probability = torch.where(left_out, 0.1, 1.0)
        probability[: len(left_out) // 2] = 1.0  # so that few look wrong in all
        return replace(trust, probability=probability, confused=0)

    monkeypatch.setattr(label_looks, "judge", overfitted)
    monkeypatch.setattr(label_looks, "MANY_WRONG", 0.5)
    looks.look(30, silent)
    assert looks.wrong < 0.5
    later = torch.arange(len(left_out)) >= len(left_out) // 2
    assert bool((looks.labels[left_out & later] < 0).all())


def test_named_classes_alone_are_judged() -> None:
    tasks = replace(config().tasks, classes=tuple(f"class {k}" for k in range(4)))
    found, _ = trained(wrong_labels(), tasks=tasks)
    assert found.looks is not None
    assert set(found.looks.labels.tolist()) <= {-1, 0, 1, 2, 3}
