"""Wrong labels of a data set, seen in an embedding."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from derts.errors import DertsError
from derts.labels import Trust, label_trust
from derts.tasks import generator

HOST = Path(__file__).with_name("trust_host.py")


def clusters(
    classes: int = 12, each: int = 60, dim: int = 20, apart: float = 0.8, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    random = generator(seed)
    true = torch.arange(classes * each) % classes
    centres = apart * torch.randn(classes, dim, generator=random)
    return centres[true] + torch.randn(len(true), dim, generator=random), true


def corrupted(true: torch.Tensor, kind: str, rate: float, classes: int = 12) -> torch.Tensor:
    random = generator((1, kind))
    flip = torch.rand(len(true), generator=random) < rate
    steps = torch.randint(1, classes, true.shape, generator=random)
    return torch.where(flip, (true + (steps if kind == "symmetric" else 1)) % classes, true)


def precision(trust: Trust, wrong: torch.Tensor) -> float:
    """Average precision of the order from least to most trustworthy."""
    hits = wrong[trust.order].double()
    found = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
    return float((found * hits).sum() / hits.sum())


@pytest.mark.parametrize(
    ("kind", "rate"),
    [("symmetric", 0.2), ("symmetric", 0.4), ("symmetric", 0.6), ("pair", 0.2), ("pair", 0.4)],
)
def test_wrong_labels_are_ranked_counted_and_told_what_they_are(kind: str, rate: float) -> None:
    rows, true = clusters()
    given = corrupted(true, kind, rate)
    wrong, trust = given != true, label_trust(rows, given)
    assert precision(trust, wrong) > 0.97
    assert trust.share_wrong == pytest.approx(float(wrong.float().mean()), abs=0.07)
    assert float((trust.suggestion == true)[wrong].float().mean()) > 0.7
    assert float(wrong[trust.probability > 0.5].float().mean()) < rate / 3
    if kind == "pair":
        off = trust.wrong.clone().fill_diagonal_(0.0)  # [true, given]
        for place in off.flatten().topk(3).indices.tolist():
            true_number, given_number = divmod(place, 12)
            assert given_number == (true_number + 1) % 12
            assert float(off[true_number, given_number]) > rate / 2


@pytest.mark.parametrize("apart", [0.0, 0.3, 0.8, 2.0])
def test_clean_labels_are_trusted_however_good_the_embedding_is(apart: float) -> None:
    rows, true = clusters(apart=apart)
    trust = label_trust(rows, true)
    assert float((trust.probability < 0.5).float().mean()) <= 0.02
    assert trust.share_wrong < 0.06


def test_confused_pairs_are_seen_where_classes_overlap() -> None:
    rows, true = clusters(each=300, apart=0.3)
    assert label_trust(rows, true).confused == 0
    symmetric = label_trust(rows, corrupted(true, "symmetric", 0.4))
    assert symmetric.confused == 0
    given = corrupted(true, "pair", 0.2)
    wrong, trust = given != true, label_trust(rows, given)
    assert trust.confused >= 12
    assert precision(trust, wrong) > 0.6  # 0.47 by one rate for all, under which none looks wrong
    assert float(wrong[trust.probability < 0.5].float().mean()) > 0.75
    assert 0.1 < trust.share_wrong < 0.25


@pytest.mark.parametrize("seed", range(6))
def test_few_images_show_no_pairs_by_chance(seed: int) -> None:
    rows, true = clusters(apart=0.2, seed=seed)
    trust = label_trust(rows, true)
    assert trust.confused == 0
    assert float((trust.probability < 0.5).float().mean()) <= 0.02
    assert label_trust(rows, corrupted(true, "symmetric", 0.4)).confused == 0


def test_an_embedding_that_tells_nothing_distrusts_nothing() -> None:
    rows, true = clusters(apart=0.0)
    trust = label_trust(rows, corrupted(true, "symmetric", 0.4))
    assert float((trust.probability < 0.5).float().mean()) < 0.05
    assert trust.weak
    assert "too weakly: if a tenth of the labels were wrong, about" in trust.note


@pytest.mark.parametrize("apart", [0.4, 0.6, 0.8, 2.0])
def test_it_says_how_many_wrong_labels_it_would_see(apart: float) -> None:
    rows, true = clusters(each=200, apart=apart)
    given = corrupted(true, "symmetric", 0.1)
    trust, wrong = label_trust(rows, given), given != true
    seen = float((trust.probability[wrong] < 0.5).float().mean())
    assert trust.sees == pytest.approx(seen, abs=0.1)
    assert trust.weak == (trust.sees < 0.5) == bool(trust.note)


def test_any_labels_and_matrices_give_the_same() -> None:
    rows, true = clusters(classes=4, each=20)
    names = np.array(["bee", "ant", "cat", "dog"])[true.numpy()]
    trust = label_trust(rows.double().numpy(), list(names))
    assert trust.classes == ("ant", "bee", "cat", "dog")
    moved = label_trust(1000 * rows.double() - 5, true)  # neither scale nor place matters
    assert torch.allclose(trust.probability, moved.probability, atol=1e-4)
    assert float(trust.rests_on.mean()) == pytest.approx(19, abs=1)
    assert "80 labels of 4 classes" in repr(trust)
    plain = label_trust(rows, true).probability
    for same in (
        rows.to_sparse(),
        rows.numpy().astype(">f4"),
        rows.numpy()[:, ::-1],
        rows.tolist(),
    ):
        assert torch.allclose(label_trust(same, true).probability, plain, atol=1e-4)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, true = clusters()
    given = corrupted(true, "pair", 0.3)
    whole = label_trust(rows.double(), given)
    monkeypatch.setattr("derts.labels.mixture.BLOCK", 2000)
    parts = label_trust(rows.double(), given)
    assert torch.allclose(whole.probability, parts.probability, atol=1e-5)
    assert torch.equal(whole.suggestion, parts.suggestion)


def test_small_classes_are_judged_and_single_images_are_told() -> None:
    rows, true = clusters(classes=5, each=4, apart=3.0)
    given = true.clone()
    given[0] = 3
    trust = label_trust(rows, given)
    assert int(trust.order[0]) == 0
    given[1] = 9
    trust = label_trust(rows, given)
    assert trust.note == "a class with one image cannot be judged: 9"


@pytest.mark.parametrize(
    ("rows", "labels", "told"),
    [
        (torch.zeros(4), [0, 0, 1, 1], r"features have shape \[4\] beside 4 labels"),
        (torch.zeros(4, 2), [0, 0, 1], r"shape \[4, 2\] beside 3 labels"),
        (torch.zeros(4, 2), [[0, 0, 1, 1]], r"labels have shape \[1, 4\]"),
        (torch.tensor([[1.0], [2.0], [float("nan")], [3.0]]), [0, 0, 1, 1], "row 2 .* not finite"),
        (torch.zeros(4, 2), [0, 0, 0, 0], "two classes with two images"),
        (torch.zeros(3, 2), [0, 1, 2], "two classes with two images"),
        (torch.zeros(2, 2), [0.0, float("nan")], "not numbers"),
        (np.array([["a"], ["b"]]), [0, 1], "not numbers"),
        ([[1.0, 2.0], [1.0]], [0, 1], "not numbers"),
        (None, [0, 1], "not numbers"),
        (torch.zeros(2, 2, dtype=torch.complex64), [0, 1], "not numbers"),
        (torch.zeros(4, 0), [0, 0, 1, 1], r"features have shape \[4, 0\]"),
        (torch.zeros(0, 2), [], "two images or more, and there are 0"),
        (torch.zeros(4, 2), [0, 0, 1, None], "of several kinds, or some are missing"),
        (torch.zeros(4, 2), ["a", "a", 1, None], "of several kinds, or some are missing"),
        (torch.zeros(4, 2), [[0], [0], [1, 2], [1]], "labels differ in length"),
        (1e300 * torch.randn(4, 2).double(), [0, 0, 1, 1], "scale them to numbers of about 1"),
    ],
)
def test_what_cannot_be_judged_is_refused(rows: Any, labels: Any, told: str) -> None:
    with pytest.raises(DertsError, match=told):
        label_trust(rows, labels)


def test_classes_must_fit_the_labels() -> None:
    rows, true = clusters(classes=4, each=5)
    with pytest.raises(DertsError, match="whole numbers from 0 to 2"):
        label_trust(rows, true, classes=("a", "b", "c"))


@pytest.mark.slow
def test_two_processes_with_half_of_the_images_each_find_the_same(tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *launcher, str(HOST), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    rows, true = clusters()
    whole = label_trust(
        rows.double(), corrupted(true, "pair", 0.3), classes=[str(c) for c in range(12)]
    )
    halves = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    assert torch.allclose(torch.cat(halves), whole.probability, atol=1e-6)
