"""Which labels change, and known wrong labels."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from derts.data import ImageTable
from derts.errors import DertsError
from derts.labels.cleaning import changes_by_trust
from derts.labels.judging import JudgedItems
from derts.labels.known_errors import confusion_matrix, corrupt_labels, score_detection
from derts.labels.trust import Trust


def judged(given: Tensor, right: Tensor, suggestion: Tensor, sure: Tensor) -> JudgedItems:
    """Images of classes a, b, c for training and d for tests, of which none is given."""
    count = len(given)
    pixels = torch.zeros(count, 2, 2, 1, dtype=torch.uint8)
    tables = {
        "train": ImageTable(pixels, given, ("a", "b", "c")),
        "test": ImageTable(pixels[:0], given[:0], ("d",), "test"),
    }
    trust = Trust(
        right, given, suggestion, sure, torch.ones(count), torch.eye(4), ("a", "b", "c", "d")
    )
    paths = [str(number) for number in range(count)]
    return JudgedItems(tables, paths, torch.zeros(count, 2), trust, torch.device("cpu"))


def test_rules() -> None:
    given = torch.tensor([0] * 40 + [1] * 40 + [2] * 40)
    right, suggestion, sure = torch.full((120,), 0.99), given.clone(), torch.full((120,), 0.99)
    right[0], suggestion[0], sure[0] = 0.01, 1, 0.99  # surely b
    right[1], suggestion[1], sure[1] = 0.1, 1, 0.8  # perhaps b
    right[2], suggestion[2], sure[2] = 0.02, 3, 0.97  # surely d, a test class
    right[3], suggestion[3], sure[3] = 0.6, 0, 0.6
    images = judged(given, right, suggestion, sure)

    def changed(*rule: object) -> list[tuple[int, str | None]]:
        found = changes_by_trust(images, *rule)  # type: ignore[arg-type]
        return [(one.image, one.new_class) for one in found]

    assert changed() == [(0, "b"), (2, None), (1, None)]
    assert changed("drop") == [(0, None), (2, None), (1, None)]
    assert changed("relabel") == [(0, "b")]
    assert changed("relabel", 0.8) == [(0, "b"), (1, "b")]
    assert changed("mix", 0.95, ("test",)) == []


def test_a_class_keeps_its_most_trusted_images() -> None:
    given = torch.tensor([0] * 30 + [1] * 8 + [2] * 40)
    right = torch.linspace(0.01, 0.4, 78)
    suggestion, sure = torch.where(given == 2, 0, 2), torch.full((78,), 0.5)
    found = changes_by_trust(judged(given, right, suggestion, sure))
    dropped = {one.image for one in found}
    assert dropped == set(range(10)) | set(range(38, 58))  # 20 of a, all 8 of b, 20 of c stay
    # relabelled images fill up a class; what is taken back empties the class that it went to
    sure[:] = 0.99
    found = changes_by_trust(judged(given, right, suggestion, sure))
    labels = given.clone()
    for one in found:
        labels[one.image] = "abc".index(one.new_class or "")
    assert (torch.bincount(labels) >= torch.tensor([20, 8, 20])).all()


def test_noise_has_the_rate_that_was_asked_for(tmp_path: Path) -> None:
    names = tuple("abcdefgh")
    labels = torch.arange(8).repeat_interleave(50)
    for noise, rate in (("symmetric", 0.4), ("pair", 0.2)):
        wrong = corrupt_labels(labels, confusion_matrix(noise, rate, names), 0)
        assert (wrong != labels).reshape(8, 50).sum(1).tolist() == [round(50 * rate)] * 8
        assert torch.equal(wrong, corrupt_labels(labels, confusion_matrix(noise, rate, names), 0))
        assert not torch.equal(
            wrong, corrupt_labels(labels, confusion_matrix(noise, rate, names), 1)
        )
        if noise == "pair":
            assert set((wrong - labels).remainder(8).tolist()) == {0, 1}
    file = tmp_path / "confusion.csv"
    file.write_text("class,given,share\na,b,0.2\na,c,0.2\nh,a,0.1\n")
    wrong = corrupt_labels(labels, confusion_matrix(f"confusion:{file}", None, names), 0)
    assert (wrong != labels).reshape(8, 50).sum(1).tolist() == [20, 0, 0, 0, 0, 0, 0, 5]
    assert set(wrong[:50].tolist()) == {0, 1, 2}
    scaled = confusion_matrix(f"confusion:{file}", 0.0625 * 1.5, names)
    assert float(1 - scaled.diagonal().mean()) == pytest.approx(0.0625 * 1.5)


@pytest.mark.parametrize(
    ("noise", "rate", "told"),
    [
        ("symmetric", None, "give --rate"),
        ("symmetric", 1.5, "from 0 to 1"),
        ("salt", 0.1, "no noise 'salt'"),
        ("confusion:nowhere.csv", None, "no file at nowhere.csv"),
        ("confusion:bad.csv", None, "names 'z'"),
        ("confusion:big.csv", None, "more than all images of class 'a'"),
        ("confusion:text.csv", None, "a number from 0 to 1"),
        ("confusion:empty.csv", None, "has no rows: write columns class, given and share"),
    ],
)
def test_bad_noise_is_one_line(noise: str, rate: float | None, told: str, in_folder: Path) -> None:
    (in_folder / "bad.csv").write_text("class,given,share\na,z,0.2\n")
    (in_folder / "big.csv").write_text("class,given,share\na,b,0.8\na,c,0.8\n")
    (in_folder / "empty.csv").write_text("")
    (in_folder / "text.csv").write_text("class,given,share\na,b,much\n")
    with pytest.raises(DertsError, match=told):
        confusion_matrix(noise, rate, ("a", "b", "c"))


def test_average_precision() -> None:
    right = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.9])
    wrong = torch.tensor([True, False, True, False, False])
    score = score_detection(right, wrong)
    assert score.average_precision == pytest.approx((1 + 2 / 3) / 2)
    assert score.first == 5
    assert score.precision == score.true == pytest.approx(0.4)
    assert score.estimated == pytest.approx(1 - 1.9 / 5)
