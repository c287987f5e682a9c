"""Class means for scikit-learn users: its own checks, our own numbers, wrong labels."""

import importlib.util
import sys
from typing import Any

import numpy as np
import pytest
import torch

import derts
from derts.learners.pool_features import evaluation_mode

pytest.importorskip("sklearn")

from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks


def blobs(each: int = 30) -> tuple[Any, Any]:
    """Rows of six classes that overlap a little, and their labels."""
    labels = np.repeat(np.arange(6), each)
    noise = np.random.default_rng(0).standard_normal((len(labels), 6))
    return 3 * np.eye(6)[labels] + noise, labels


@parametrize_with_checks([derts.PrototypeClassifier()])  # type: ignore[untyped-decorator]
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    settings = estimator.get_params()
    check(estimator)  # raises an AssertionError where the estimator does not behave
    assert estimator.get_params() == settings


@parametrize_with_checks(  # type: ignore[untyped-decorator]
    [derts.PrototypeClassifier(trust=True)]
)
def test_scikit_learns_own_checks_with_trust(estimator: Any, check: Any) -> None:
    if any(name in str(check) for name in ("train", "dtypes", "classes", "y_2d", "array")):
        pytest.skip("fits many times: the checks without trust do the same")
    settings = estimator.get_params()
    check(estimator)
    assert estimator.get_params() == settings


def test_the_same_probabilities_as_derts_predict() -> None:
    rows, labels = blobs()
    support, query = np.arange(0, len(rows), 2), np.arange(1, len(rows), 2)
    table = derts.FeatureTable(
        torch.tensor(rows[support]).float(), torch.tensor(labels[support]), tuple("abcdef")
    )
    learner = derts.build_learner(
        derts.LearnerConfig(), derts.ModelConfig("none"), way=6, item_shape=(6,)
    )
    learner.backbone.fit(table)  # type: ignore[operator]
    with evaluation_mode(learner):
        adapted = learner.adapt(learner.features(table.items[None]), table.labels[None])
        features = learner.features(torch.tensor(rows[query]).float()[None])
        expected = learner.logits(adapted, features)[0].softmax(-1)
    classifier = derts.PrototypeClassifier().fit(rows[support], labels[support])
    found = classifier.predict_proba(rows[query])
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)
    moved = derts.PrototypeClassifier().fit(rows[support] + 1e6, labels[support])
    np.testing.assert_allclose(moved.predict_proba(rows[query] + 1e6), found, atol=1e-6)


def test_trust_bears_wrong_labels() -> None:
    rows, true = blobs()
    random = np.random.default_rng(1)
    wrong = random.random(len(true)) < 0.4
    given = np.where(wrong, true + random.integers(1, 3, len(true)), true) % 6
    plain, trusting = (
        derts.PrototypeClassifier(trust=trust).fit(rows, given) for trust in (False, True)
    )
    assert trusting.score(rows, true) > plain.score(rows, true) + 0.05
    right = trusting.trust_.probability.numpy()
    assert right[wrong].mean() < 0.2
    assert right[~wrong].mean() > 0.9


def test_in_a_pipeline_with_names_as_labels() -> None:
    rows, labels = blobs()
    pipeline = make_pipeline(StandardScaler(), derts.PrototypeClassifier())
    assert cross_val_score(pipeline, rows, np.array(list("abcdef"))[labels], cv=3).min() > 0.85


def test_bad_use() -> None:
    with pytest.raises(ValueError, match="two classes with two"):
        derts.PrototypeClassifier(trust=True).fit([[0.0], [1.0], [2.0]], [0, 1, 2])
    with pytest.raises(NotFittedError):
        derts.PrototypeClassifier().predict([[0.0]])


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module can be imported, and the classifier says what it needs."""
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    found = importlib.util.find_spec("derts.prototype_classifier")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    with pytest.raises(derts.DertsError, match="pip install scikit-learn"):
        module.PrototypeClassifier(trust=True)
